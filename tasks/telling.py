"""Who hears that a job has ended (outcomes.py): endpoints, in central's transaction; then its pool.

A job that ended without a result may have no dispatch by which anybody would find it after a
crash. So its pool keeps a note, `untold_since`, until central knows.
"""

from uuid import UUID

from sqlalchemy.orm import Session

from models import deliveries, jobs, messages
from models.base import utcnow
from models.dispatches import Dispatch
from models.jobs import Job, JobStatus
from tasks.backend import Backend


def tell(session: Session, job: Job, *, user_id: UUID | None = None) -> int:
    """Returns how many endpoints were not told before. A copy of a job may not know its user."""
    message = messages.job_ended(
        job_id=job.id,
        user_id=user_id or job.user_id,
        status=job.status,
        error_code=job.error_code,
        at=job.completed_at or utcnow(),
    )
    return deliveries.tell(session, job.tenant_id, message)


def tell_without_job(session: Session, dispatch: Dispatch, *, error_code: str) -> int:
    """Its row is gone; whoever ordered it still waits for a word."""
    message = messages.job_ended(
        job_id=dispatch.tenant_job_id,
        user_id=dispatch.user_id,
        status=JobStatus.FAILED,
        error_code=error_code,
        at=dispatch.updated_at,
    )
    return deliveries.tell(session, dispatch.tenant_id, message)


def central_knows(backend: Backend, job: Job, *, told: int) -> None:
    """What need not wait for anybody, and is done again if it gets lost."""
    if told:
        backend.bell.call_courier()
    if job.untold_since and backend.databases.on_postgres:
        backend.later.add(_note_told, (backend, job))
    elif job.untold_since:  # SQLite has one writer at a time: a second thread would only wait
        _note_told([(backend, job)])
    backend.news.tell(job.id)


def _note_told(ended: list[tuple[Backend, Job]]) -> None:
    by_pool: dict[tuple[Backend, str], list[UUID]] = {}
    for backend, job in ended:
        pool = backend.databases.pool_of(job.tenant_id)
        by_pool.setdefault((backend, pool), []).append(job.id)
    for (backend, pool), job_ids in by_pool.items():
        with backend.databases.pool(pool) as session:
            jobs.note_told(session, job_ids)
