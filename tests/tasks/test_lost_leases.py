"""Leases that ran out are taken back, however many, and nobody who orders waits for that."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import event, func, select

from models import dispatches, jobs, ledger, ledger_audit
from models.audit import AuditLog
from models.base import utcnow
from models.dispatches import Dispatch
from models.jobs import Job
from tasks import catalog, outcomes, reconcile
from tasks.backend import Backend
from tests.fixtures import Person, make_person
from tests.tasks import many_leases, orders

MANY = 10_000
CUSTOMERS = 4


@pytest.fixture
def other(postgres: Backend) -> Iterator[Backend]:
    """The process that takes back."""
    catalog.seed_demo(postgres)
    control = Backend.open(postgres.settings)
    yield control
    control.close()


def customers(backend: Backend, ada: Person) -> list[Person]:
    """Some of those whose jobs are held, with tokens for more."""
    people = [replace(ada, user_id=many_leases.user(number)) for number in range(CUSTOMERS)]
    for person in people:
        with backend.databases.tenant(ada.tenant_id) as session:
            ledger.credit(
                session,
                user_id=person.user_id,
                amount=100_000,
                provider_transaction_id=f"pay-{person.user_id}",
            )
    return people


@contextmanager
def without_limit(backend: Backend) -> Iterator[Backend]:
    web = Backend.open(replace(backend.settings, max_active_jobs=100_000))
    yield web
    web.close()


def test_ten_thousand_are_taken_back_in_one_pass_while_orders_come_in(
    postgres: Backend, other: Backend
) -> None:
    ada = make_person(postgres)
    many_leases.add_expired(postgres, ada.tenant_id, MANY)
    done = threading.Event()

    def keep_ordering(person: Person) -> int:
        made = 0
        while not done.is_set() or not made:
            assert orders.order(web, person).status == "queued"
            made += 1
        return made

    with without_limit(postgres) as web, ThreadPoolExecutor(CUSTOMERS) as threads:
        ordering = [threads.submit(keep_ordering, one) for one in customers(postgres, ada)]
        try:
            assert reconcile.take_back_leases(other, now=utcnow()) == MANY
        finally:
            done.set()
        made = sum(one.result(60) for one in ordering)
    assert made >= CUSTOMERS
    with postgres.databases.central(read_only=True) as session:
        states = session.execute(select(Dispatch.status, func.count()).group_by(Dispatch.status))
        assert dict(states.tuples().all()) == {"queued": MANY + made}
        lost = session.query(AuditLog).filter_by(event="job.lease_expired").count()
    with postgres.databases.pool("main") as session:
        assert session.query(Job).filter_by(status="processing").count() == 0
        assert list(ledger_audit.disagreements(session)) == []
    assert lost == MANY


@pytest.mark.parametrize("database", ["pool:main", "central"])
def test_an_order_waits_for_no_lock_of_a_batch(
    postgres: Backend, other: Backend, database: str
) -> None:
    """The sweep stops right before it commits a batch, with all its locks; orders go on."""
    ada = make_person(postgres)
    many_leases.add_expired(postgres, ada.tenant_id, 200)
    held, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        held.set()
        assert go_on.wait(60)

    event.listen(other.databases.engine(database), "commit", hold)
    with without_limit(postgres) as web, ThreadPoolExecutor(1) as thread:
        people = customers(postgres, ada)
        taking = thread.submit(reconcile.take_back_leases, other, now=utcnow())
        try:
            assert held.wait(60)
            made = [orders.order(web, person) for person in people for _ in range(3)]
            outcomes.cancel(web, made[0].tenant_id, made[0].id)
        finally:
            go_on.set()
        assert taking.result(60) == 200


@pytest.fixture
def held(demo: Backend) -> Dispatch:
    ada = make_person(demo, tokens=100)
    orders.order(demo, ada)
    demo.later.close()
    dispatch = orders.lease_next(demo)
    assert dispatch is not None
    start(demo, dispatch)
    return dispatch


def start(backend: Backend, dispatch: Dispatch) -> None:
    with backend.databases.tenant(dispatch.tenant_id) as session:
        jobs.start(session, dispatch.tenant_job_id)


def wake_up(backend: Backend, held: Dispatch) -> None:
    later = utcnow() + timedelta(seconds=181)
    with backend.databases.central() as session:
        dispatches.extend(session, orders.lease_of(held), seconds=180, now=later)


def be_taken_over(backend: Backend, held: Dispatch) -> None:
    taken = orders.lease_next(backend, worker_id="w2", now=utcnow() + timedelta(seconds=181))
    assert taken is not None
    assert taken.id == held.id
    start(backend, taken)


def complete(backend: Backend, held: Dispatch) -> None:
    outcomes.complete(backend, orders.lease_of(held), outputs=[])


def cancel(backend: Backend, held: Dispatch) -> None:
    outcomes.cancel(backend, held.tenant_id, held.tenant_job_id)


MEANWHILE = [
    (wake_up, "leased", "processing"),
    (be_taken_over, "leased", "processing"),
    (complete, "completed", "completed"),
    (cancel, "cancelled", "cancelled"),
]


@pytest.mark.parametrize(("meanwhile", "dispatch_is", "job_is"), MEANWHILE)
def test_what_happens_between_the_two_databases_counts(
    demo: Backend,
    held: Dispatch,
    meanwhile: Callable[[Backend, Dispatch], None],
    dispatch_is: str,
    job_is: str,
) -> None:
    """The job was told that it waits again; then its worker, or another, shows that it runs."""
    control = Backend.open(demo.settings)
    looks = itertools.count(1)

    def at_the_second(*_: object) -> None:
        if next(looks) == 2:  # the first found the lease, this one is to take it back
            meanwhile(demo, held)

    event.listen(control.databases.engine("central"), "checkout", at_the_second)
    now = utcnow() + timedelta(seconds=181)
    assert reconcile.take_back_leases(control, now=now) == 0
    control.close()
    assert next(looks) > 2
    assert states(demo, held) == (dispatch_is, job_is)


def states(backend: Backend, held: Dispatch) -> tuple[str, str]:
    with backend.databases.central(read_only=True) as session:
        dispatch = session.get_one(Dispatch, held.id)
    with backend.databases.tenant(held.tenant_id) as session:
        return dispatch.status, jobs.get(session, held.tenant_job_id).status


@pytest.mark.parametrize("job_is", ["completed", "cancelled", "gone"])
def test_a_job_that_ended_or_is_gone_is_not_queued_again(
    demo: Backend, held: Dispatch, job_is: str
) -> None:
    with demo.databases.tenant(held.tenant_id) as session:
        if job_is == "completed":
            jobs.complete(session, held.tenant_job_id, outputs=[])
        elif job_is == "cancelled":
            jobs.cancel(session, held.tenant_job_id)
    if job_is == "gone":  # as after a backup of its pool that is too old
        with demo.databases.central() as session:
            session.get_one(Dispatch, held.id).tenant_job_id = uuid4()
    for expected in (1, 0):
        now = utcnow() + timedelta(seconds=181)
        assert reconcile.take_back_leases(demo, now=now) == expected
    with demo.databases.central(read_only=True) as session:
        dispatch = session.get_one(Dispatch, held.id)
        ends = [row.event for row in session.query(AuditLog).filter_by(dispatch_id=held.id)]
    assert dispatch.status == ("failed" if job_is == "gone" else job_is)
    assert len(ends) == 1
