"""A worker is alive, and where its job stands; what it has to know in return.

How soon the next one is due is ours to say, so that many workers cost no more than they
should: the fewer jobs run, the closer somebody can watch each of them.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from models import dispatches, hot_heartbeat, logs, workers
from models.dispatches import LEASED, Dispatch, DispatchStatus, Lease
from models.object_store import SignedRequest
from models.workers import Identity
from tasks import leftovers, uploads
from tasks.backend import Backend

SOONEST_SECONDS = 2
PER_SECOND = 50  # heartbeats of one fleet that we are glad to answer in a second


@dataclass(frozen=True)
class Answer:
    draining: bool
    next_seconds: int
    cancel_requested: bool = False
    lease_expires_at: datetime | None = None
    output: SignedRequest | None = None
    uploads: list[dict[str, Any]] | None = None


def idle(backend: Backend, worker: Identity) -> Answer:
    if backend.databases.on_postgres:
        hot_heartbeat.idle(backend.databases, worker.id)
    else:
        with backend.databases.central() as session:
            workers.note_seen(session, worker.id, current_load=0)
    return Answer(draining=worker.is_draining, next_seconds=backend.settings.heartbeat_seconds)


def busy(
    backend: Backend,
    worker: Identity,
    lease: Lease,
    *,
    progress: float | None = None,
    current_node: str | None = None,
    outputs: list[uploads.Made] | None = None,
) -> Answer:
    uploads.require_possible(backend, outputs or ())
    upload_names = [output.name for output in outputs or ()]
    dispatch = _extend(
        backend, worker, lease, upload_names, progress=progress, current_node=current_node
    )
    logs.bind(**dispatch.ids)
    if progress is not None or current_node is not None:
        backend.news.tell(dispatch.tenant_job_id)
    is_held = dispatch.status == DispatchStatus.LEASED
    return Answer(
        draining=worker.is_draining,
        next_seconds=_next_seconds(backend, worker.fleet_id),
        cancel_requested=not is_held,
        lease_expires_at=dispatch.lease_expires_at,
        output=uploads.expected(backend, dispatch) if is_held else None,
        uploads=uploads.pinned(backend, dispatch, outputs) if outputs and is_held else None,
    )


def _extend(
    backend: Backend, worker: Identity, lease: Lease, upload_names: list[str], **told: Any
) -> Dispatch:
    databases, seconds = backend.databases, backend.settings.lease_seconds
    if databases.on_postgres and not upload_names:
        held = hot_heartbeat.busy(databases, worker.id, lease, seconds=seconds, **told)
        if held is not None:
            return held
    with leftovers.refusals_noted(backend, lease), databases.central() as session:
        workers.note_seen(session, worker.id, current_load=1)
        return dispatches.extend(session, lease, seconds=seconds, upload_names=upload_names, **told)


def _next_seconds(backend: Backend, fleet_id: UUID) -> int:
    running = backend.loads.get(str(fleet_id))
    if running is None:
        with backend.databases.central(read_only=True) as session:
            query = select(func.count()).select_from(Dispatch)
            running = session.scalars(query.where(LEASED, Dispatch.fleet_id == fleet_id)).one()
        backend.loads.put(str(fleet_id), running)
    longest = backend.settings.heartbeat_seconds
    return max(1, min(max(SOONEST_SECONDS, running // PER_SECOND), longest))
