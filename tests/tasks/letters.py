"""Jobs that ended as dead letters in tests, and what was made of them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event, select, update

from models import dead_letters, jobs, ledger
from models.audit import AuditLog
from models.base import utcnow
from models.dead_letters import DeadLetter
from models.dispatches import LEASED, Dispatch
from models.errors import Refusal
from models.jobs import Job
from tasks import reconcile
from tasks.backend import Backend
from tests.fixtures import Person
from tests.tasks import orders


def given_up(backend: Backend, person: Person, **given: Any) -> Job:
    """A job whose workers all went silent."""
    job = orders.order(backend, person, **given)
    lose(backend)
    return job


def lose(backend: Backend) -> None:
    """Whatever waits is taken by workers that die at once, until it is given up."""
    now = utcnow()
    while orders.lease_next(backend, now=now):
        now += timedelta(seconds=181)
    reconcile.run_once(backend, now=now)


def let_leases_run_out(backend: Backend) -> None:
    with backend.databases.central() as session:
        session.execute(update(Dispatch).where(LEASED).values(lease_expires_at=utcnow()))


def letter_of(backend: Backend, job: Job) -> DeadLetter | None:
    with backend.databases.central(read_only=True) as session:
        dispatch = dispatch_of(backend, job)
        return dead_letters.find_by_dispatch(session, dispatch.id)


def kept(backend: Backend, job: Job) -> DeadLetter:
    letter = letter_of(backend, job)
    assert letter is not None
    return letter


def dispatch_of(backend: Backend, job: Job) -> Dispatch:
    dispatch = orders.dispatch_of(backend, job)
    assert dispatch is not None
    return dispatch


def every_job(backend: Backend, person: Person) -> list[Job]:
    with backend.databases.tenant(person.tenant_id) as session:
        return list(session.scalars(select(Job).order_by(Job.created_at, Job.id)))


def stored(backend: Backend, person: Person, job_id: UUID | None) -> Job:
    assert job_id is not None
    with backend.databases.tenant(person.tenant_id) as session:
        return jobs.get(session, job_id)


def balance(backend: Backend, person: Person) -> int:
    with backend.databases.tenant(person.tenant_id) as session:
        return ledger.balance(session, user_id=person.user_id)


def audited(backend: Backend, event: str) -> list[AuditLog]:
    with backend.databases.central(read_only=True) as session:
        return list(session.scalars(select(AuditLog).filter_by(event=event).order_by(AuditLog.at)))


def at_once(threads: int, step: Callable[[], Any]) -> list[Any]:
    """What each of them got: an answer, or the refusal."""
    start = threading.Barrier(threads)

    def run(_: int) -> Any:
        start.wait(timeout=30)
        try:
            return step()
        except Refusal as refusal:
            return refusal

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


class Killed(BaseException):
    """The process is gone. Nothing in our code may catch it."""


@contextmanager
def dying_in_central(backend: Backend) -> Iterator[None]:
    """Dies when it commits there for the first time: the tenant's side is done."""

    def die(*_: Any) -> None:
        raise Killed

    engine = backend.databases.engine("central")
    event.listen(engine, "commit", die)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        event.remove(engine, "commit", die)
