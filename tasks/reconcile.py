"""Carry on with whatever a crash left half done. Safe to run twice, and at the same time.

submitting jobs        their dispatch is created (again), and they are queued
submitting for long    failed and refunded
locked out workers     hold nothing: their leases run out at once
expired leases         queued again, or failed and refunded when that was the last try
stranded jobs          their workflow moved while they were held: they move after it
lost tickets           rung again, until a fleet has one for every job that waits

Each step, each pool and each item fails alone (steps.py): what is away holds up nobody else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import select

from models import dispatches, enlisted, jobs, lanes, stranded
from models.base import utcnow
from models.fleets import Fleet
from models.jobs import Job, JobStatus
from tasks import outcomes
from tasks.backend import Backend
from tasks.steps import each, guarded, in_every_pool
from tasks.submission import ensure_dispatch

BATCH = 1000
GRACE_SECONDS = 10  # a submit that is under way right now is left to finish


@dataclass
class Reconciled:
    healed: int = 0
    orphans_refunded: int = 0
    locked_out: int = 0
    leases_taken_back: int = 0
    given_up: int = 0
    moved: int = 0
    tickets_rung: int = 0


def run_once(backend: Backend, *, now: datetime | None = None) -> Reconciled:
    now = now or utcnow()
    return Reconciled(
        orphans_refunded=guarded("orphans", partial(refund_orphans, backend, now=now)),
        healed=guarded("submitting jobs", partial(heal_submitting, backend, now=now)),
        locked_out=guarded("locked out workers", partial(disown_locked_out, backend, now=now)),
        leases_taken_back=guarded("expired leases", partial(take_back_leases, backend, now=now)),
        given_up=guarded("exhausted jobs", partial(give_up_exhausted, backend, now=now)),
        moved=guarded("stranded jobs", partial(move_stranded, backend)),
        tickets_rung=guarded("lost tickets", partial(ring_for_waiting, backend)),
    )


def heal_submitting(backend: Backend, *, now: datetime) -> int:
    before = now - timedelta(seconds=GRACE_SECONDS)
    return _each_submitting(backend, before, lambda job: ensure_dispatch(backend, job))


def refund_orphans(backend: Backend, *, now: datetime) -> int:
    """Nobody could dispatch them in time: give the tokens back."""
    before = now - timedelta(seconds=backend.settings.submitting_timeout_seconds)
    return _each_submitting(backend, before, lambda job: _refund(backend, job))


def _refund(backend: Backend, orphan: Job) -> bool:
    if ensure_dispatch(backend, orphan):
        return False  # a last try worked
    return outcomes.not_started(backend, orphan.tenant_id, orphan.id)


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
    """In batches, so that no lock is held for long."""
    total = 0
    while True:
        with backend.databases.central() as session:
            taken = dispatches.expire(session, limit=BATCH, now=now)
            for dispatch in taken:
                outcomes.note_lost_lease(session, dispatch, attempt=dispatch.attempts)
        total += len(taken)
        each(taken, lambda dispatch: _tell_job(backend, dispatch))
        if len(taken) < BATCH:
            return total


def _tell_job(backend: Backend, dispatch: dispatches.Dispatch) -> bool:
    with backend.databases.tenant(dispatch.tenant_id) as session:
        job = jobs.back_to_queue(session, dispatch.tenant_job_id)
    outcomes.settle(backend, job)
    if job.is_active:
        with backend.databases.central(read_only=True) as session:
            fleet = session.get_one(Fleet, dispatch.fleet_id)
        backend.bell.ring(fleet.slug, dispatch.id)
    return True


def give_up_exhausted(backend: Backend, *, now: datetime) -> int:
    with backend.databases.central(read_only=True) as session:
        dead = dispatches.exhausted(session, limit=BATCH, now=now)
    return each(dead, lambda dispatch: outcomes.give_up(backend, dispatch.id, now=now))


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
