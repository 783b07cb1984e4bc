"""Workers that nobody heard of for hours are forgotten; what an operator decided is not."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import event, select

from models import enlisted, workers
from models.audit import AuditLog
from models.base import utcnow
from models.dispatches import Dispatch
from models.errors import Forbidden, Unauthorized
from models.fleets import Fleet
from models.workers import Worker
from tasks import catalog, cleanup, leasing
from tasks.backend import Backend
from tests.fixtures import make_person
from tests.tasks import gpu, orders

NOW = timedelta(seconds=7201)


def names(backend: Backend) -> set[str]:
    with backend.databases.central(read_only=True) as session:
        return set(session.scalars(select(Worker.worker_id)))


def clean_up(backend: Backend, *, later: timedelta = NOW) -> int:
    return cleanup.run_once(backend, now=utcnow() + later).workers_removed


def test_a_worker_unseen_for_two_hours_is_removed(demo: Backend) -> None:
    token = gpu.register(demo, "old")
    with demo.databases.central() as session:
        row = session.query(Worker).one()
        row.last_seen_at = utcnow() - timedelta(hours=1)
    gpu.register(demo, "new")
    assert [clean_up(demo, later=NOW - timedelta(hours=1)) for _ in range(2)] == [1, 0]
    assert names(demo) == {"new"}
    with pytest.raises(Unauthorized):
        gpu.identify(demo, token)
    gpu.register(demo, "old")  # its name is free
    with demo.databases.central(read_only=True) as session:
        [log] = session.query(AuditLog).filter_by(event="worker.remove")
    assert (log.actor, log.worker_id, log.details["fleet"]) == ("system", "old", gpu.FLEET)


def test_what_it_held_may_be_leased_by_others(demo: Backend) -> None:
    """However long its lease is."""
    orders.order(demo, make_person(demo, tokens=100))
    lease = gpu.take(demo, gpu.join(demo))
    with demo.databases.central() as session:
        session.get_one(Dispatch, lease.dispatch_id).lease_expires_at = utcnow() + 3 * NOW
    assert clean_up(demo) == 1
    taken = gpu.poll(demo, gpu.join(demo))
    assert taken is not None
    assert (taken.dispatch.id, taken.dispatch.attempts) == (lease.dispatch_id, 2)


def test_a_worker_that_was_locked_out_stays_so(demo: Backend) -> None:
    gpu.register(demo, "bad")
    gpu.register(demo, "drained")
    with demo.databases.central() as session:
        enlisted.approve(session, enlisted.locked(session, "bad"), approved=False)
        enlisted.drain(session, "drained")
    assert clean_up(demo) == 1
    assert names(demo) == {"bad"}
    with pytest.raises(Forbidden):
        gpu.register(demo, "bad")


def test_a_place_in_a_full_fleet_is_not_held_by_the_gone(demo: Backend) -> None:
    with demo.databases.central() as session:
        session.query(Fleet).filter_by(slug=gpu.FLEET).one().max_workers = 1
    gpu.register(demo, "first")
    clean_up(demo)
    gpu.register(demo, "second")


@pytest.fixture
def stopped(postgres: Backend) -> Iterator[tuple[Backend, threading.Event, threading.Event]]:
    """Another process, stopped when it is about to commit."""
    catalog.seed_demo(postgres)
    other = Backend.open(postgres.settings)
    reached, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        reached.set()
        assert go_on.wait(60)

    event.listen(other.databases.engine("central"), "commit", hold)
    yield other, reached, go_on
    other.close()


def test_a_worker_that_is_heard_of_at_that_moment_stays(
    postgres: Backend, stopped: tuple[Backend, threading.Event, threading.Event]
) -> None:
    other, reached, go_on = stopped
    worker = gpu.join(postgres, "w1")
    with postgres.databases.central() as session:
        session.query(Worker).one().last_seen_at = utcnow() - NOW

    def speak() -> None:
        with other.databases.central() as session:
            workers.note_seen(session, worker.id)

    with ThreadPoolExecutor(1) as thread:
        speaking = thread.submit(speak)
        assert reached.wait(60)
        assert clean_up(postgres, later=timedelta()) == 0  # its row is held: not waited for
        go_on.set()
        speaking.result(60)
    assert clean_up(postgres, later=timedelta()) == 0
    assert names(postgres) == {"w1"}


def test_a_worker_that_polls_while_it_is_removed_registers_anew(
    postgres: Backend, stopped: tuple[Backend, threading.Event, threading.Event]
) -> None:
    other, reached, go_on = stopped
    orders.order(postgres, make_person(postgres, tokens=100))
    worker = gpu.join(postgres, "w1")
    with postgres.databases.central() as session:
        session.query(Worker).one().last_seen_at = utcnow() - NOW
    with ThreadPoolExecutor(1) as thread:
        removing = thread.submit(clean_up, other, later=timedelta())
        assert reached.wait(60)
        leased = leasing.lease(postgres, worker, providers=["self_hosted"])
        go_on.set()
        assert removing.result(60) == 1
    assert leased is not None  # its lease is good, or runs out: the job is in nobody's way
    assert names(postgres) == set()
