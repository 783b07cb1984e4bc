"""How jobs end, over both databases: tenant first (the money), then central.

Each function can be repeated. If a crash stops one between its two commits, the job has
ended and its dispatch has not; whoever touches the dispatch next, by a repeated report, by
leasing it, or in the reconciler, calls `settle`, which makes the dispatch follow its job.

`actor` is who caused it, for the audit log: a worker, a user, or the system itself.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from models import (
    audit,
    dead_letters,
    dispatches,
    effects,
    hot_worker,
    jobs,
    logs,
)
from models.dispatches import Dispatch, DispatchStatus, Lease
from models.files import Output
from models.fleets import Fleet
from models.jobs import Job, JobStatus
from tasks import error_text, leftovers, telling
from tasks.backend import Backend

logger = logging.getLogger(__name__)

SYSTEM = "system"

_EVENTS = {
    JobStatus.COMPLETED: "job.complete",
    JobStatus.FAILED: "job.fail",
    JobStatus.CANCELLED: "job.cancel",
}


def complete(
    backend: Backend,
    lease: Lease,
    *,
    outputs: list[Output],
    provider_job_id: str | None = None,
    held: Dispatch | None = None,
    actor: str = SYSTEM,
    **details: Any,
) -> Job:
    """`held` is what `check` answered a moment ago, if somebody asked."""
    dispatch = held or check(backend, lease)
    if backend.databases.on_postgres:
        job = hot_worker.complete(
            backend.databases, dispatch, outputs=outputs, provider_job_id=provider_job_id
        )
        if job is not None:
            told = hot_worker.follow(backend.databases, dispatch, job, actor=actor, details=details)
            telling.central_knows(backend, job, told=told)
            return job
    with backend.databases.tenant(dispatch.tenant_id) as session:
        job = jobs.complete(
            session, dispatch.tenant_job_id, outputs=outputs, provider_job_id=provider_job_id
        )
    with backend.databases.central() as session:
        told = _follow(session, dispatch.id, job, actor=actor, **details)
    telling.central_knows(backend, job, told=told)
    return job


def fail(
    backend: Backend,
    lease: Lease,
    *,
    code: str,
    message: str,
    error: str,
    trace: str | None = None,
    actor: str = SYSTEM,
    **details: Any,
) -> Job:
    """The job went wrong for good. `message` is for the user, the rest for the operators."""
    dispatch = check(backend, lease)
    with backend.databases.tenant(dispatch.tenant_id) as session:
        job = jobs.fail(session, dispatch.tenant_job_id, code=code, message=message)
    with backend.databases.central() as session:
        told = _follow(session, dispatch.id, job, error=error, trace=trace, actor=actor, **details)
    telling.central_knows(backend, job, told=told)
    logger.warning("Job %s failed: %s.", job.id, job.error_code or job.status)
    return job


def retry(
    backend: Backend, lease: Lease, *, error: str, actor: str = SYSTEM, **details: Any
) -> Dispatch | None:
    """Something around the job went wrong: it waits for another try. None if none is left."""
    dispatch = check(backend, lease, requeued=True)
    if dispatch.status == DispatchStatus.LEASED and dispatch.attempts >= dispatch.max_attempts:
        return None
    # The second try begins at once, elsewhere if it can; then it is worth a pause.
    pause = backend.settings.retry_seconds * (dispatch.attempts - 1)

    def release(session: Session) -> Dispatch:
        return dispatches.retry(session, lease, error=error, backoff_seconds=pause)

    return _give_back(
        backend, dispatch, release, event="job.retry", actor=actor, error=error, **details
    )


def requeue(
    backend: Backend,
    lease: Lease,
    *,
    reason: str,
    pause_seconds: float = 0,
    actor: str = SYSTEM,
) -> Dispatch:
    """The worker has to go: the job waits again, at the head of its turn."""
    dispatch = check(backend, lease, requeued=True)

    def release(session: Session) -> Dispatch:
        return dispatches.requeue(session, lease, reason=reason, pause_seconds=pause_seconds)

    return _give_back(backend, dispatch, release, event="job.requeue", actor=actor, reason=reason)


def _give_back(
    backend: Backend,
    dispatch: Dispatch,
    release: Callable[[Session], Dispatch],
    *,
    event: str,
    actor: str,
    **details: Any,
) -> Dispatch:
    """A job that has ended, before a crash or by a cancel, is settled and not queued again."""
    with backend.databases.tenant(dispatch.tenant_id) as session:
        job = jobs.back_to_queue(session, dispatch.tenant_job_id)
    if not job.is_active:
        return settle(backend, job, actor=actor) or dispatch
    with backend.databases.central() as session:
        was_held = dispatches.locked(session, dispatch.id).status == DispatchStatus.LEASED
        dispatch = release(session)
        fleet = session.get_one(Fleet, dispatch.fleet_id)
        if was_held:
            note(session, event, dispatch, actor=actor, **details)
    logger.info("Job %s waits again (%s).", job.id, event)
    if dispatch.status == DispatchStatus.QUEUED and dispatch.available_at is None:
        # After a pause, the reconciler rings.
        backend.bell.ring(fleet.slug, dispatch.id, dispatch.traceparent)
    backend.news.tell(dispatch.tenant_job_id)
    return dispatch


def cancel(backend: Backend, tenant_id: UUID, job_id: UUID, *, actor: str = SYSTEM) -> Job:
    """Ends a job that has not ended yet. One that has is returned as it is."""
    with backend.databases.tenant(tenant_id) as session:
        job = jobs.cancel(session, job_id)
    settle(backend, job, actor=actor)
    _tell_worker(backend, job)
    return job


def _tell_worker(backend: Backend, job: Job) -> None:
    """The worker would learn of it at its next heartbeat: have it ask now."""
    with backend.databases.central(read_only=True) as session:
        dispatch = dispatches.find_by_job(session, job.tenant_id, job.id)
        if dispatch is not None and dispatch.worker_id is not None:
            fleet = session.get_one(Fleet, dispatch.fleet_id)
            backend.bell.nudge(fleet.slug, dispatch.worker_id)


def give_up(backend: Backend, dispatch_id: UUID, *, now: datetime) -> bool:
    """Its attempts are used up. Looked at anew: its worker may have woken up meanwhile."""
    with backend.databases.central() as session:
        dispatch = dispatches.find_exhausted(session, dispatch_id, now=now)
        if dispatch is None:
            return False
        if dispatches.note_lost(session, dispatch_id, now=now):
            note_lost_lease(session, dispatch, attempt=dispatch.attempts)
    with backend.databases.tenant(dispatch.tenant_id) as session:
        job = jobs.fail(
            session,
            dispatch.tenant_job_id,
            code="attempts_exhausted",
            message="The job could not be finished. Your tokens were given back.",
        )
    settle(backend, job, error=dispatch.last_error or dispatches.WENT_SILENT)
    logger.warning("Job %s was given up after %d attempts.", job.id, dispatch.attempts)
    return True


def not_started(
    backend: Backend, tenant_id: UUID, job_id: UUID, *, error: str | None = None
) -> bool:
    """No fleet could be had for it in time: the tokens are given back."""
    with backend.databases.tenant(tenant_id) as session:
        job = jobs.fail(
            session,
            job_id,
            code=jobs.SUBMISSION_TIMEOUT,
            message="The job could not be started. Your tokens were given back.",
        )
    settle(backend, job, error=error)
    logger.warning("Job %s could not be started: it is %s.", job.id, job.status)
    return job.status == JobStatus.FAILED


def end(backend: Backend, dispatch_id: UUID, job: Job | None) -> bool:
    """Of a dispatch whose job has ended, or is not there."""
    if job is None:
        end_without_job(backend, dispatch_id, error="Its job is not there any more.")
        return True
    return settle(backend, job) is not None


def end_without_job(backend: Backend, dispatch_id: UUID, *, error: str) -> None:
    """The job's row is gone, by hand or with a restored backup: nobody shall be sent to it."""
    with backend.databases.central() as session:
        was_open = dispatches.locked(session, dispatch_id).status in dispatches.OPEN
        dispatch = dispatches.fail(session, dispatch_id, error=error)
        if not was_open:
            return
        note(session, "job.fail", dispatch, actor=SYSTEM, code="not_runnable", error=error)
        told = telling.tell_without_job(session, dispatch, error_code="not_runnable")
    if told:
        backend.bell.call_courier()


def settle(
    backend: Backend, job: Job, *, error: str | None = None, actor: str = SYSTEM
) -> Dispatch | None:
    """Make a dispatch follow its job, if the job has ended. One without a dispatch is told too."""
    if job.status not in jobs.ENDED:
        return None
    with backend.databases.central() as session:
        dispatch = dispatches.find_by_job(session, job.tenant_id, job.id)
        told = 0
        if dispatch is not None:
            told += _follow(session, dispatch.id, job, error=error, actor=actor)
        if job.untold_since:  # it may have no dispatch, or one that ended without it
            told += telling.tell(session, job)
    telling.central_knows(backend, job, told=told)
    return dispatch


def check(backend: Backend, lease: Lease, *, requeued: bool = False) -> Dispatch:
    """The dispatch of a lease, or LeaseLost."""
    databases = backend.databases
    dispatch = hot_worker.held(databases, lease) if databases.on_postgres else None
    if dispatch is None:
        with (
            leftovers.refusals_noted(backend, lease),
            databases.central(read_only=True) as session,
        ):
            dispatch = dispatches.check(session, lease, requeued=requeued)
    logs.bind(**dispatch.ids)
    return dispatch


def _follow(
    session: Session,
    dispatch_id: UUID,
    job: Job,
    *,
    actor: str,
    error: str | None = None,
    trace: str | None = None,
    **details: Any,
) -> int:
    """Returns how many endpoints were told of it, in the same transaction."""
    was_open = dispatches.locked(session, dispatch_id).status in dispatches.OPEN
    match job.status:
        case JobStatus.COMPLETED:
            dispatch = dispatches.complete(session, dispatch_id, now=job.completed_at)
            if was_open and dispatch.duration_seconds is not None:
                effects.record_duration(session, job.effect_id, seconds=dispatch.duration_seconds)
        case JobStatus.CANCELLED:
            dispatch = dispatches.cancel(session, dispatch_id)
        case JobStatus.FAILED:
            error = error or job.error_message or ""
            told = error_text.for_operators(error, trace)
            dispatch = dispatches.fail(session, dispatch_id, error=told)
            details = {"code": job.error_code, "error": told} | details
        case _:
            raise ValueError(f"The job {job.id} is {job.status}: it has not ended.")
    if not was_open:
        return 0
    note(session, _EVENTS[JobStatus(job.status)], dispatch, actor=actor, **details)
    dead_letters.keep(session, dispatch, code=job.error_code, error=error, trace=trace)
    return telling.tell(session, job, user_id=dispatch.user_id)


def note_lost_lease(session: Session, dispatch: Dispatch, *, attempt: int) -> None:
    """A lease ran out: once for each, whoever finds it. The metrics count these rows."""
    audit.record(
        session,
        "job.lease_expired",
        actor=SYSTEM,
        tenant_id=dispatch.tenant_id,
        dispatch_id=dispatch.id,
        trace_id=dispatch.trace_id,
        job_id=str(dispatch.tenant_job_id),
        attempt=attempt,
    )


def note(session: Session, event: str, dispatch: Dispatch, *, actor: str, **details: Any) -> None:
    _, is_worker, name = actor.partition("worker:")
    audit.record(
        session,
        event,
        actor=actor,
        tenant_id=dispatch.tenant_id,
        worker_id=name if is_worker else dispatch.worker_id,
        dispatch_id=dispatch.id,
        trace_id=dispatch.trace_id,
        job_id=str(dispatch.tenant_job_id),
        attempt=dispatch.attempts,
        **details,
    )
