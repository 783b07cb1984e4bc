"""How jobs end, over both databases: tenant first (the money), then central.

Each function can be repeated. If a crash stops one between its two commits, the job has
ended and its dispatch has not; whoever touches the dispatch next, by a repeated report, by
leasing it, or in the reconciler, calls `settle`, which makes the dispatch follow its job.
"""

from uuid import UUID

from sqlalchemy.orm import Session

from models import dispatches, effects, jobs
from models.dispatches import Dispatch, DispatchStatus, Lease
from models.files import Output
from models.fleets import Fleet
from models.jobs import Job, JobStatus
from tasks.backend import Backend


def complete(
    backend: Backend, lease: Lease, *, outputs: list[Output], provider_job_id: str | None = None
) -> Job:
    dispatch = _check(backend, lease)
    with backend.databases.tenant(dispatch.tenant_id) as session:
        job = jobs.complete(
            session, dispatch.tenant_job_id, outputs=outputs, provider_job_id=provider_job_id
        )
    with backend.databases.central() as session:
        _follow(session, dispatch.id, job)
        if job.status == JobStatus.COMPLETED and job.started_at and job.completed_at:
            seconds = (job.completed_at - job.started_at).total_seconds()
            effects.record_duration(session, job.effect_id, seconds=seconds)
    return job


def fail(backend: Backend, lease: Lease, *, code: str, message: str, error: str) -> Job:
    """The job went wrong for good. `message` is for the user, `error` for the operators."""
    dispatch = _check(backend, lease)
    with backend.databases.tenant(dispatch.tenant_id) as session:
        job = jobs.fail(session, dispatch.tenant_job_id, code=code, message=message)
    with backend.databases.central() as session:
        _follow(session, dispatch.id, job, error=error)
    return job


def requeue(backend: Backend, lease: Lease, *, reason: str) -> Dispatch:
    """The worker has to go: the job waits again, at the head of its turn."""
    dispatch = _check(backend, lease, requeued=True)
    with backend.databases.tenant(dispatch.tenant_id) as session:
        jobs.back_to_queue(session, dispatch.tenant_job_id)
    with backend.databases.central() as session:
        dispatch = dispatches.requeue(session, lease, reason=reason)
        fleet = session.get_one(Fleet, dispatch.fleet_id)
    if dispatch.status == DispatchStatus.QUEUED:
        backend.bell.ring(fleet.slug, dispatch.id)
    return dispatch


def cancel(backend: Backend, tenant_id: UUID, job_id: UUID) -> Job:
    """Ends a job that has not ended yet. One that has is returned as it is."""
    with backend.databases.tenant(tenant_id) as session:
        job = jobs.cancel(session, job_id)
    settle(backend, job)
    return job


def give_up(backend: Backend, dispatch: Dispatch) -> Job:
    """Its attempts are used up."""
    with backend.databases.tenant(dispatch.tenant_id) as session:
        job = jobs.fail(
            session,
            dispatch.tenant_job_id,
            code="attempts_exhausted",
            message="The job could not be finished. Your tokens were given back.",
        )
    settle(backend, job, error=dispatch.last_error or "The worker went silent.")
    return job


def settle(backend: Backend, job: Job, *, error: str | None = None) -> None:
    """Make a dispatch follow its job, if the job has ended."""
    if job.status not in jobs.ENDED:
        return
    with backend.databases.central() as session:
        if dispatch := dispatches.find_by_job(session, job.tenant_id, job.id):
            _follow(session, dispatch.id, job, error=error)


def _check(backend: Backend, lease: Lease, *, requeued: bool = False) -> Dispatch:
    with backend.databases.central() as session:
        return dispatches.check(session, lease, requeued=requeued)


def _follow(session: Session, dispatch_id: UUID, job: Job, error: str | None = None) -> None:
    match job.status:
        case JobStatus.COMPLETED:
            dispatches.complete(session, dispatch_id)
        case JobStatus.CANCELLED:
            dispatches.cancel(session, dispatch_id)
        case JobStatus.FAILED:
            dispatches.fail(session, dispatch_id, error=error or job.error_message or "")
