"""Many jobs of a pool at once, for sweeps. No money moves here, so no wallet is locked.

A row that somebody holds is stepped over: they are changing its state.
"""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from models.jobs import ACTIVE, Job, JobStatus


def back_to_queue(session: Session, job_ids: Collection[UUID]) -> set[UUID]:
    """Their workers were lost. Returns those that were `processing`."""
    return _move(session, job_ids, JobStatus.PROCESSING, JobStatus.QUEUED)


def at_work(session: Session, job_ids: Collection[UUID]) -> set[UUID]:
    """Workers have them after all. Returns those that were noted as `queued`."""
    return _move(session, job_ids, JobStatus.QUEUED, JobStatus.PROCESSING)


def _move(
    session: Session, job_ids: Collection[UUID], before: JobStatus, after: JobStatus
) -> set[UUID]:
    free = (
        select(Job.id)
        .where(Job.id.in_(job_ids), Job.status == before)
        .order_by(Job.id)
        .with_for_update(skip_locked=True)
    )
    statement = (
        update(Job)
        .where(Job.id.in_(free.scalar_subquery()))
        .values(status=after)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return set(session.scalars(statement))


def not_active(session: Session, job_ids: Collection[UUID]) -> dict[UUID, Job | None]:
    """Those that have ended, and None for those that are not there."""
    query = select(Job.id, Job.status).where(Job.id.in_(job_ids))
    statuses = dict(session.execute(query).tuples().all())
    others = [job_id for job_id in job_ids if statuses.get(job_id) not in ACTIVE]
    return {job_id: session.get(Job, job_id) for job_id in others}
