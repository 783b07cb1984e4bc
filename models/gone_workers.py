"""Fleet workers that nobody heard of for hours: their machines are gone, and did not say so.

A worker that was locked out stays: its row is what keeps its name locked out.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from models import dispatches, workers
from models.fleets import Fleet
from models.workers import Worker


@dataclass(frozen=True)
class Gone:
    worker: Worker
    fleet_slug: str
    abandoned: list[UUID]  # dispatches that it held


def find(session: Session, *, before: datetime, limit: int) -> list[UUID]:
    """Rows of workers last seen before this time."""
    query = select(Worker.id).where(_is_gone(before)).order_by(Worker.last_seen_at)
    return list(session.scalars(query.limit(limit)))


def remove(session: Session, row_id: UUID, *, before: datetime) -> Gone | None:
    """Unless it was heard of meanwhile, or somebody is changing it. What it held is for others."""
    row = select(Worker).where(Worker.id == row_id, _is_gone(before))
    worker = session.scalar(row.with_for_update(skip_locked=True))
    if worker is None:
        return None
    fleet = session.get_one(Fleet, worker.fleet_id)
    workers.remove(session, worker.id)  # first, like a heartbeat: no two wait for each other
    abandoned = dispatches.abandon(session, fleet_id=fleet.id, worker_id=worker.worker_id)
    return Gone(worker, fleet.slug, abandoned)


def _is_gone(before: datetime) -> ColumnElement[bool]:
    return (Worker.last_seen_at < before) & Worker.is_approved
