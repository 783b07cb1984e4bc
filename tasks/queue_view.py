"""Where jobs stand: progress, place in the queue, and when they may be done."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models import lanes
from models.base import utcnow
from models.dispatches import Dispatch, DispatchStatus
from models.effects import Effect
from models.jobs import Job
from models.workers import Worker
from tasks.backend import Backend

SEEN_SECONDS = 300  # a worker that was heard of since then counts as there


@dataclass(frozen=True)
class Place:
    progress: float = 0.0
    attempts: int = 0
    position: int | None = None
    eta_seconds: float | None = None


NOWHERE = Place()


def places(backend: Backend, jobs: Sequence[Job]) -> dict[UUID, Place]:
    """The place of each of these jobs of one tenant that has a dispatch."""
    if not jobs:
        return {}
    by_id = {job.id: job for job in jobs}
    with backend.databases.central(read_only=True) as session:
        rows = session.scalars(
            select(Dispatch).where(
                Dispatch.tenant_id == jobs[0].tenant_id, Dispatch.tenant_job_id.in_(by_id)
            )
        ).all()
        return {row.tenant_job_id: _place(session, row, by_id[row.tenant_job_id]) for row in rows}


def _place(session: Session, dispatch: Dispatch, job: Job) -> Place:
    if not job.is_active:
        return Place(progress=dispatch.progress, attempts=dispatch.attempts)
    position = lanes.position(session, dispatch)
    return Place(
        progress=dispatch.progress,
        attempts=dispatch.attempts,
        position=position,
        eta_seconds=_eta(session, dispatch, job, position),
    )


def _eta(session: Session, dispatch: Dispatch, job: Job, position: int | None) -> float | None:
    """As if every job took as long as the effect's last one; None until one has run."""
    seconds = session.scalar(
        select(Effect.last_processing_time_seconds).where(Effect.id == job.effect_id)
    )
    if seconds is None:
        return None
    if dispatch.status == DispatchStatus.LEASED:
        return round(seconds * (1 - dispatch.progress), 1)
    rounds = (position or 0) // max(_workers(session, dispatch.fleet_id), 1) + 1
    return round(seconds * rounds, 1)


def _workers(session: Session, fleet_id: UUID) -> int:
    since = utcnow() - timedelta(seconds=SEEN_SECONDS)
    query = select(func.count()).select_from(Worker)
    return session.scalars(
        query.where(Worker.fleet_id == fleet_id, Worker.last_seen_at >= since)
    ).one()
