"""Forget workers whose machines are gone. Each fails alone (steps.py)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from models import audit, gone_workers
from models.base import utcnow
from tasks.backend import Backend
from tasks.outcomes import SYSTEM
from tasks.steps import each, guarded

BATCH = 1000


@dataclass
class CleanedUp:
    workers_removed: int = 0


def run_once(backend: Backend, *, now: datetime | None = None) -> CleanedUp:
    before = (now or utcnow()) - timedelta(seconds=backend.settings.worker_forgotten_seconds)
    return CleanedUp(
        workers_removed=guarded("workers that are gone", partial(remove, backend, before=before))
    )


def remove(backend: Backend, *, before: datetime) -> int:
    with backend.databases.central(read_only=True) as session:
        found = gone_workers.find(session, before=before, limit=BATCH)
    return each(found, lambda row_id: _remove(backend, row_id, before))


def _remove(backend: Backend, row_id: UUID, before: datetime) -> bool:
    with backend.databases.central() as session:
        gone = gone_workers.remove(session, row_id, before=before)
        if gone is None:
            return False
        audit.record(
            session,
            "worker.remove",
            actor=SYSTEM,
            worker_id=gone.worker.worker_id,
            fleet=gone.fleet_slug,
            last_seen_at=gone.worker.last_seen_at.isoformat(),
            abandoned=len(gone.abandoned),
        )
    for dispatch_id in gone.abandoned:
        backend.bell.ring(gone.fleet_slug, dispatch_id)
    return True
