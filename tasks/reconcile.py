"""Carry on with whatever a crash left half done. Safe to run twice, and at the same time.

submitting jobs        their dispatch is created (again), and they are queued
submitting for long    failed and refunded
ends without a result  central hears of them, and so does whoever listens
locked out workers     hold nothing: their leases run out at once
expired leases         queued again, or failed and refunded when that was the last try
stranded jobs          their workflow moved while they were held: they move after it
lost tickets           rung again, until a fleet has one for every job that waits

Each step, each pool and each item fails alone (steps.py): what is away holds up nobody else.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from sqlalchemy import select

from models import dispatches, enlisted, job_batches, jobs, lanes, lost_leases, stranded, traces
from models.base import utcnow
from models.fleets import Fleet
from models.jobs import Job, JobStatus
from models.lost_leases import LostLease
from tasks import outcomes
from tasks.backend import Backend
from tasks.steps import each, each_by_pool, guarded, in_every_pool, in_pool
from tasks.submission import ensure_dispatch

logger = logging.getLogger(__name__)

BATCH = 1000
MOST_LEASES = 100_000  # that a run looks at
GRACE_SECONDS = 10  # a submit that is under way right now is left to finish


@dataclass
class Reconciled:
    healed: int = 0
    orphans_refunded: int = 0
    settled: int = 0
    locked_out: int = 0
    leases_taken_back: int = 0
    given_up: int = 0
    moved: int = 0
    tickets_rung: int = 0


def run_once(backend: Backend, *, now: datetime | None = None) -> Reconciled:
    now = now or utcnow()
    return Reconciled(
        orphans_refunded=guarded("orphans", partial(refund_orphans, backend, now=now)),
        settled=guarded("untold ends", partial(settle_untold, backend, now=now)),
        healed=guarded("submitting jobs", partial(heal_submitting, backend, now=now)),
        locked_out=guarded("locked out workers", partial(disown_locked_out, backend, now=now)),
        leases_taken_back=guarded("expired leases", partial(take_back_leases, backend, now=now)),
        given_up=guarded("exhausted jobs", partial(give_up_exhausted, backend, now=now)),
        moved=guarded("stranded jobs", partial(move_stranded, backend)),
        tickets_rung=guarded("lost tickets", partial(ring_for_waiting, backend)),
    )


def heal_submitting(backend: Backend, *, now: datetime) -> int:
    before = now - timedelta(seconds=GRACE_SECONDS)
    return _each_submitting(backend, before, lambda job: _heal(backend, job))


def _heal(backend: Backend, job: Job) -> bool:
    is_dispatched = ensure_dispatch(backend, job)
    if is_dispatched:
        logger.info("Carried on with the submit of job %s.", job.id)
    return is_dispatched


def refund_orphans(backend: Backend, *, now: datetime) -> int:
    """Nobody could dispatch them in time: give the tokens back."""
    before = now - timedelta(seconds=backend.settings.submitting_timeout_seconds)
    return _each_submitting(backend, before, lambda job: _refund(backend, job))


def _refund(backend: Backend, orphan: Job) -> bool:
    if ensure_dispatch(backend, orphan):
        return False  # a last try worked
    return outcomes.not_started(backend, orphan.tenant_id, orphan.id)


def settle_untold(backend: Backend, *, now: datetime) -> int:
    """Jobs that ended without a result: central may not know, and no dispatch lead to them."""
    before = now - timedelta(seconds=GRACE_SECONDS)

    def settle(job: Job) -> bool:
        outcomes.settle(backend, job)
        return True

    def in_pool(pool: str) -> int:
        with backend.databases.pool(pool) as session:
            found = jobs.untold(session, before=before, limit=BATCH)
        return each(found, settle)

    return in_every_pool(backend, in_pool)


def _each_submitting(backend: Backend, before: datetime, step: Callable[[Job], bool]) -> int:
    def in_pool(pool: str) -> int:
        return each(_submitting_since(backend, pool, before), step)

    return in_every_pool(backend, in_pool)


def _submitting_since(backend: Backend, pool: str, before: datetime) -> list[Job]:
    with backend.databases.pool(pool) as session:
        return list(
            session.scalars(
                select(Job)
                .where(Job.status == JobStatus.SUBMITTING, Job.created_at <= before)
                .order_by(Job.created_at)
                .limit(BATCH)
            )
        )


def disown_locked_out(backend: Backend, *, now: datetime) -> int:
    """A process that remembered one of them for a moment may have given it a job after that."""
    with backend.databases.central() as session:
        return len(enlisted.abandon_locked_out(session, now=now))


def take_back_leases(backend: Backend, *, now: datetime) -> int:
    """In batches, a statement for each database, so that no lock is held for long."""
    with backend.databases.central(read_only=True) as session:
        found = lost_leases.find(session, limit=MOST_LEASES, now=now)
    by_pool: dict[str, list[LostLease]] = {}
    for lease in found:
        by_pool.setdefault(lease.pool, []).append(lease)

    def in_batches(pool: str) -> int:
        lost = by_pool[pool]
        batches = [lost[first : first + BATCH] for first in range(0, len(lost), BATCH)]
        return each(batches, lambda batch: _take_back(backend, pool, batch, now))

    return sum(in_pool(backend, pool, in_batches) for pool in by_pool)


def _take_back(backend: Backend, pool: str, lost: list[LostLease], now: datetime) -> int:
    """Tenant first: whoever leases one of them next notes that it runs, and nobody undoes that."""
    by_job = {lease.job_id: lease for lease in lost}
    with backend.databases.pool(pool) as session:
        told = job_batches.back_to_queue(session, by_job)
        others = job_batches.not_active(session, by_job)

    def end(job_id: UUID) -> bool:
        return outcomes.end(backend, by_job[job_id].dispatch_id, others[job_id])

    done = each(others, end)
    waiting = {lease.dispatch_id: lease for lease in lost if lease.job_id not in others}
    with backend.databases.central() as session:
        taken = lost_leases.expire(session, waiting, now=now)
        for dispatch in taken:
            outcomes.note_lost_lease(session, dispatch, attempt=dispatch.attempts)
    for dispatch in taken:
        with traces.about(dispatch):
            logger.warning("The lease of job %s ran out: it waits again.", dispatch.tenant_job_id)
        slug = waiting[dispatch.id].fleet_slug
        backend.bell.ring(slug, dispatch.id, dispatch.traceparent)
        backend.news.tell(dispatch.tenant_job_id)
    if told - {dispatch.tenant_job_id for dispatch in taken}:
        _note_at_work(backend, pool, waiting)
    return done + len(taken)


def _note_at_work(backend: Backend, pool: str, waiting: Collection[UUID]) -> None:
    """Some were held after all: a worker woke up, or another one was quicker than we."""
    with backend.databases.central(read_only=True) as session:
        held = lost_leases.held_after_all(session, waiting)
    with backend.databases.pool(pool) as session:
        job_batches.at_work(session, held)


def give_up_exhausted(backend: Backend, *, now: datetime) -> int:
    with backend.databases.central(read_only=True) as session:
        dead = dispatches.exhausted(session, limit=MOST_LEASES, now=now)
    return each_by_pool(backend, dead, lambda row: outcomes.give_up(backend, row.id, now=now))


def move_stranded(backend: Backend) -> int:
    with backend.databases.central() as session:
        moved = stranded.move(session, stage=backend.settings.stage, limit=BATCH)
    for dispatch_id, fleet_slug in moved:
        backend.bell.ring(fleet_slug, dispatch_id)
    return len(moved)


def ring_for_waiting(backend: Backend) -> int:
    """Redis may have been emptied: tickets are kept to no fewer than the jobs that wait.

    Only tickets that nobody has taken count; one too many costs a worker one question.
    """
    rung = 0
    with backend.databases.central(read_only=True) as session:
        fleets = session.scalars(select(Fleet).where(Fleet.stage == backend.settings.stage)).all()
    for fleet in fleets:
        with backend.databases.central(read_only=True) as session:
            waiting = lanes.waiting(session, fleet_id=fleet.id, limit=BATCH)
        tickets = backend.bell.waiting(fleet.slug) if waiting else None
        if tickets is None:
            continue
        for dispatch_id in waiting[tickets:]:
            backend.bell.ring(fleet.slug, dispatch_id)
            rung += 1
    return rung
