"""Workers as operators see them: whether they are there, and what they work on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

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

    def told(self) -> dict[str, Any]:
        """As API and command line tell it."""
        worker = self.worker
        return {
            "id": worker.id,
            "worker_id": worker.worker_id,
            "fleet": self.fleet.slug,
            "stage": self.fleet.stage,
            "status": "present" if self.is_present else "gone",
            "is_approved": worker.is_approved,
            "is_draining": worker.is_draining,
            "providers": worker.providers,
            "capabilities": worker.capabilities,
            "max_concurrency": worker.max_concurrency,
            "current_load": worker.current_load,
            "holds": [_held(dispatch) for dispatch in self.holds],
            "last_seen_at": worker.last_seen_at,
            "registered_at": worker.created_at,
        }


def _held(dispatch: Dispatch) -> dict[str, Any]:
    return {
        "dispatch_id": dispatch.id,
        "job_id": dispatch.tenant_job_id,
        "attempt": dispatch.attempts,
        "progress": dispatch.progress,
        "current_node": dispatch.current_node,
        "leased_at": dispatch.leased_at,
        "lease_expires_at": dispatch.lease_expires_at,
    }


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
