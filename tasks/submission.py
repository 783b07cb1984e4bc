r"""Ordering a job: two short transactions, and what can wait.

    1. tenant pool   the job, `submitting`, and the hold on its price
    2. central       its dispatch, if there is none yet; now the answer can be given
    3. Redis         a ticket for the fleet          \ a moment later, many at once
    4. tenant pool   the job is noted as `queued`    /  (tasks/later.py)

Money first. Each step can be repeated by whoever comes next: the same request again, or
the reconciler. A crash after step 1 leaves a job that `ensure_dispatch` carries on with.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from models import (
    dead_letters,
    dispatches,
    effects,
    fleets,
    hot_path,
    jobs,
    lanes,
    logs,
    orders,
    payload,
    properties,
    traces,
)
from models.dispatches import Dispatch
from models.effects import Effect
from models.errors import EffectUnavailable, InvalidInput, NotFound, Refusal
from models.fleets import Fleet, WorkflowFleet
from models.jobs import Job, JobStatus
from models.orders import Order, Submitted
from models.properties import Property
from models.workflows import Workflow
from tasks import outcomes
from tasks.backend import Backend


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asked for."""

    tenant_id: UUID
    user_id: UUID
    effect: str  # id or slug
    idempotency_key: str
    inputs: Mapping[str, Any]
    video_id: UUID | None = None

    def fingerprint(self) -> str:
        asked = [self.effect, str(self.video_id), self.inputs]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Offer:
    """An effect, what it takes, and the fleet that would run it."""

    effect: Effect
    fleet: Fleet
    properties: list[Property]

    @property
    def primary(self) -> Property | None:
        return payload.primary_media(self.properties, self.effect.overrides)


def submit(backend: Backend, request: Request) -> Submitted:
    try:
        offer, order = _plan(backend, request)
    except Refusal:
        # The effect may have been withdrawn since: a repeat still gets its job.
        if job := _earlier_job(backend, request):
            ensure_dispatch(backend, job)
            return Submitted(job, is_new=False)
        raise
    submitted = _take_order(backend, request.tenant_id, order)
    if submitted.is_new:
        _dispatch(backend, submitted.job, offer.fleet)
        _mark_queued_later(backend, submitted.job)
    else:
        ensure_dispatch(backend, submitted.job)
    return submitted


def _take_order(backend: Backend, tenant_id: UUID, order: Order) -> Submitted:
    max_active = backend.settings.max_active_jobs
    if backend.databases.on_postgres:
        job = hot_path.submit(backend.databases, tenant_id, order, max_active=max_active)
        if job is not None:
            return Submitted(job, is_new=True)
    with backend.databases.tenant(tenant_id) as session:
        return orders.submit(session, order, max_active=max_active)


def _plan(backend: Backend, request: Request) -> tuple[Offer, Order]:
    offer = _current_offer(backend, request.effect)
    return offer, _order(request, offer)


def _current_offer(backend: Backend, effect: str) -> Offer:
    """Effects change rarely: what was read a moment ago is good enough, see the setting."""
    known = backend.offers.get(effect)
    if known is None:
        with backend.databases.central(read_only=True) as session:
            known = find_offer(session, effect, stage=backend.settings.stage)
        backend.offers.put(effect, known)
    return known


def find_offer(session: Session, effect: str, *, stage: str) -> Offer:
    row = session.execute(
        select(Effect, Fleet)
        .outerjoin(
            WorkflowFleet,
            and_(WorkflowFleet.workflow_id == Effect.workflow_id, WorkflowFleet.stage == stage),
        )
        .outerjoin(Fleet, and_(Fleet.id == WorkflowFleet.fleet_id, Fleet.is_active))
        .where(effects.named(effect))
    ).one_or_none()
    if row is None:
        raise NotFound(f"There is no effect {effect!r}.")
    found, fleet = row
    if not (found.is_active and found.workflow.is_active):
        raise EffectUnavailable(f"The effect {found.name!r} is switched off at the moment.")
    if fleet is None:
        raise EffectUnavailable(f"No machines serve the effect {found.name!r} at the moment.")
    return Offer(found, fleet, properties_of(found.workflow))


def _order(request: Request, offer: Offer) -> Order:
    effect, workflow, primary = offer.effect, offer.effect.workflow, offer.primary
    inputs = dict(request.inputs)
    if request.video_id is not None:
        if primary is None:
            raise InvalidInput.field("video_id", "This effect takes no image or video.")
        if inputs.get(primary.name) is not None:
            raise InvalidInput.field("video_id", f"Give either this or inputs.{primary.name}.")
        inputs[primary.name] = str(request.video_id)
    values = _resolve(offer, inputs)
    media = {p.name: p.type for p in offer.properties if p.is_media and values.get(p.name)}
    return Order(
        user_id=request.user_id,
        effect_id=effect.id,
        effect_slug=effect.slug,
        workflow_id=workflow.id,
        provider=effect.provider,
        price_tokens=effect.credits_cost,
        idempotency_key=request.idempotency_key,
        fingerprint=request.fingerprint(),
        video_id=request.video_id,
        input_payload={
            "values": values,
            "media": media,
            "primary": primary.name if primary and primary.name in media else None,
            "content_hash": workflow.content_hash,
        },
    )


def _resolve(offer: Offer, inputs: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(payload.resolve(offer.properties, offer.effect.overrides, inputs))
    except InvalidInput as refusal:
        primary = offer.primary
        if primary is not None and primary.name not in inputs and refusal.errors:
            missing = refusal.errors.pop(f"inputs.{primary.name}", None)
            if missing:  # what the user left out is called video_id on the wire
                refusal.errors["video_id"] = missing
        raise


@lru_cache(maxsize=1024)
def _parsed(definitions: str) -> list[Property]:
    return properties.parse_properties(json.loads(definitions))


def properties_of(workflow: Workflow) -> list[Property]:
    return _parsed(json.dumps(workflow.properties))


def _earlier_job(backend: Backend, request: Request) -> Job | None:
    with backend.databases.tenant(request.tenant_id) as session:
        job = orders.find_by_key(
            session, user_id=request.user_id, idempotency_key=request.idempotency_key
        )
    if job is not None:
        orders.require_same_order(job, request.fingerprint())
    return job


def ensure_dispatch(backend: Backend, job: Job) -> bool:
    """Carry on where a submit stopped. False if no fleet serves the job any more."""
    if job.status != JobStatus.SUBMITTING:
        return True
    if not give_dispatch(backend, job):
        return False
    _mark_queued([(backend, job)])
    return True


def give_dispatch(backend: Backend, job: Job) -> bool:
    """A dispatch, if the job has none. False if no fleet serves it any more.

    The fleet is that of the job's workflow: its effect may use another one by now.
    """
    with backend.databases.central(read_only=True) as session:
        fleet = fleets.serving(session, workflow_id=job.workflow_id, stage=backend.settings.stage)
        if fleet is None and dispatches.find_by_job(session, job.tenant_id, job.id) is None:
            return False
    if fleet is not None:
        _dispatch(backend, job, fleet)
    return True


def _dispatch(backend: Backend, job: Job, fleet: Fleet) -> None:
    traceparent: str | None = traces.current()
    dispatch_id = _join(backend, job, fleet, traceparent)
    if dispatch_id is None:  # it was there before us. Whoever made it may not have rung
        with backend.databases.central(read_only=True) as session:
            found = dispatches.find_by_job(session, job.tenant_id, job.id)
        dispatch_id, traceparent = (found.id, found.traceparent) if found else (None, None)
    if dispatch_id is not None:
        logs.bind(job_id=job.id, dispatch_id=dispatch_id)
        backend.bell.ring(fleet.slug, dispatch_id, traceparent)
        backend.news.tell(job.id)
    job.status = JobStatus.QUEUED  # its dispatch exists: that is what the word means


def _join(backend: Backend, job: Job, fleet: Fleet, traceparent: str | None) -> UUID | None:
    waiting: dict[str, Any] = {
        "tenant_id": job.tenant_id,
        "tenant_job_id": job.id,
        "user_id": job.user_id,
        "workflow_id": job.workflow_id,
        "fleet_id": fleet.id,
        "provider": job.provider,
        "max_attempts": backend.settings.max_attempts,
        "traceparent": traceparent,
    }
    if backend.databases.on_postgres and job.origin is None:
        return hot_path.join(backend.databases, **waiting)
    with backend.databases.central() as session:
        if job.origin is not None:
            waiting["priority"] = _leave_letter(session, job, job.origin)
        return lanes.join(session, **waiting)


def _leave_letter(session: Session, job: Job, origin: dict[str, Any]) -> int:
    """A job that was ordered again will be served: its letter is done with. The old priority.

    A restored backup may know nothing of what failed; the job is paid for all the same.
    """
    failed = session.get(Dispatch, UUID(origin["dispatch_id"]), with_for_update=True)
    if failed is None:
        return 0
    dead_letters.redriven(session, failed.id, job_id=job.id, actor=origin["actor"])
    return failed.priority


def _mark_queued_later(backend: Backend, job: Job) -> None:
    if backend.databases.on_postgres:
        backend.later.add(_mark_queued, (backend, job))
    else:  # SQLite has one writer at a time: a second thread would only wait
        _mark_queued([(backend, job)])


def _mark_queued(dispatched: list[tuple[Backend, Job]]) -> None:
    """Note in the pools that these jobs have a dispatch. If that is lost, it is done again."""
    by_pool: dict[tuple[Backend, str], list[Job]] = {}
    for backend, job in dispatched:
        pool = backend.databases.pool_of(job.tenant_id)
        by_pool.setdefault((backend, pool), []).append(job)
    for (backend, pool), batch in by_pool.items():
        with backend.databases.pool(pool) as session:
            marked = jobs.mark_queued(session, [job.id for job in batch])
        for job in batch:
            if job.id not in marked:  # it may have ended before its dispatch was made
                with backend.databases.tenant(job.tenant_id) as session:
                    current = jobs.get(session, job.id)
                outcomes.settle(backend, current)
