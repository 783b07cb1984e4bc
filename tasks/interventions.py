"""What a person changes about a job that waits or is held. Audited where it changes anything.

Rows decide who is served next, so each of these counts at once. Whoever watches is told.
"""

from uuid import UUID

from models import dead_letters, dispatches, lanes
from models.dispatches import Dispatch, DispatchStatus
from models.errors import NotFound, NotPossibleNow
from models.fleets import Fleet
from tasks import outcomes, redrive
from tasks.backend import Backend


def front(backend: Backend, dispatch_id: UUID, *, actor: str) -> Dispatch:
    """God mode: ahead of everything that waits for its fleet now."""
    with backend.databases.central() as session:
        before = dispatches.locked(session, dispatch_id).priority
        dispatch = lanes.to_front(session, dispatch_id)
        if dispatch.priority != before:
            changed = {"before": before, "priority": dispatch.priority}
            outcomes.note(session, "dispatch.front", dispatch, actor=actor, **changed)
    _wake(backend, dispatch)
    return dispatch


def set_priority(backend: Backend, dispatch_id: UUID, *, priority: int, actor: str) -> Dispatch:
    with backend.databases.central() as session:
        before = dispatches.locked(session, dispatch_id).priority
        dispatch = lanes.set_priority(session, dispatch_id, priority=priority)
        if dispatch.priority != before:
            changed = {"before": before, "priority": priority}
            outcomes.note(session, "dispatch.priority", dispatch, actor=actor, **changed)
    _wake(backend, dispatch)
    return dispatch


def retry(backend: Backend, dispatch_id: UUID, *, actor: str) -> Dispatch:
    """One that backs off: now. One that failed: its work is ordered again; the new dispatch."""
    with backend.databases.central(read_only=True) as session:
        dispatch = dispatches.get(session, dispatch_id)
    if dispatch.status == DispatchStatus.FAILED:
        return _retry_failed(backend, dispatch, actor)
    with backend.databases.central() as session:
        was_due = dispatches.locked(session, dispatch_id).available_at
        dispatch = lanes.make_due(session, dispatch_id)
        if was_due is not None:
            outcomes.note(session, "dispatch.retry", dispatch, actor=actor)
    _wake(backend, dispatch)
    return dispatch


def _retry_failed(backend: Backend, failed: Dispatch, actor: str) -> Dispatch:
    with backend.databases.central(read_only=True) as session:
        letter = dead_letters.find_by_dispatch(session, failed.id)
    if letter is None:
        letter = redrive.again(backend, failed, actor=actor)
    else:
        letter = redrive.redrive(backend, letter.id, actor=actor)
    new = letter.redriven_job_id
    with backend.databases.central(read_only=True) as session:
        made = dispatches.find_by_job(session, failed.tenant_id, new) if new else None
    if made is None:
        raise NotPossibleNow(f"It was ordered again as job {new}, which ended before it began.")
    return made


def cancel(backend: Backend, dispatch_id: UUID, *, actor: str) -> Dispatch:
    """Ends its job, with a refund. One that has ended is returned as it is."""
    with backend.databases.central(read_only=True) as session:
        dispatch = dispatches.get(session, dispatch_id)
    try:
        outcomes.cancel(backend, dispatch.tenant_id, dispatch.tenant_job_id, actor=actor)
    except NotFound:  # the job's row is gone: nobody to refund, but nobody shall run it either
        _cancel_without_job(backend, dispatch_id, actor)
    with backend.databases.central(read_only=True) as session:
        return dispatches.get(session, dispatch_id)


def _cancel_without_job(backend: Backend, dispatch_id: UUID, actor: str) -> None:
    with backend.databases.central() as session:
        was_open = dispatches.locked(session, dispatch_id).status in dispatches.OPEN
        dispatch = dispatches.cancel(session, dispatch_id)
        if was_open:
            outcomes.note(session, "job.cancel", dispatch, actor=actor)


def _wake(backend: Backend, dispatch: Dispatch) -> None:
    with backend.databases.central(read_only=True) as session:
        fleet = session.get_one(Fleet, dispatch.fleet_id)
    if dispatch.available_at is None:
        backend.bell.ring(fleet.slug, dispatch.id, dispatch.traceparent)
    backend.news.tell(dispatch.tenant_job_id)
