"""Workers as operators see them: whether they are there, and what they work on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import enlisted
from models.base import utcnow
from models.dispatches import Dispatch
from models.fleets import Fleet
from models.workers import Worker
from tasks.backend import Backend


@dataclass(frozen=True)
class ShownWorker:
    worker: Worker
    fleet: Fleet
    is_present: bool
    holds: list[Dispatch]


def gone_before(backend: Backend) -> datetime:
    """Who was not heard of since then has left."""
    return utcnow() - timedelta(seconds=backend.settings.worker_gone_seconds)


def workers_shown(backend: Backend, session: Session, found: Sequence[Worker]) -> list[ShownWorker]:
    homes = {
        fleet.id: fleet
        for fleet in session.scalars(
            select(Fleet).where(Fleet.id.in_({one.fleet_id for one in found}))
        )
    }
    held = enlisted.held_by(session, found)
    limit = gone_before(backend)
    return [
        ShownWorker(one, homes[one.fleet_id], one.last_seen_at >= limit, held[one.worker_id])
        for one in found
    ]
