"""The state machine of a dispatch: who may change it, and to what."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from models import dispatches, lost_leases
from models.base import utcnow
from models.dispatches import Dispatch, DispatchStatus, Lease
from models.errors import LeaseLost, NotFound
from tasks.backend import Backend
from tests.models.waiting import Queue, lease_of, make_queue

REPORTS: dict[str, Callable[[Session, Lease], object]] = {
    "check": lambda session, lease: dispatches.check(session, lease),
    "extend": lambda session, lease: dispatches.extend(session, lease, seconds=60),
    "retry": lambda session, lease: dispatches.retry(session, lease, error="e"),
    "requeue": lambda session, lease: dispatches.requeue(session, lease, reason="spot"),
}


@pytest.fixture
def queue(backend: Backend) -> Queue:
    return make_queue(backend)


@pytest.fixture
def held(queue: Queue) -> Dispatch:
    queue.add(uuid4())
    return queue.must_lease()


def test_a_lease_says_who_until_when_and_how_often(queue: Queue) -> None:
    queue.add(uuid4())
    now = utcnow()
    held = queue.must_lease(now=now, seconds=90, worker_id="i-1")
    assert held.status == DispatchStatus.LEASED
    assert held.lease_token is not None
    assert held.lease_expires_at == now + timedelta(seconds=90)
    assert (held.worker_id, held.attempts) == ("i-1", 1)


@pytest.mark.parametrize("report", REPORTS)
def test_a_wrong_token_is_refused_everywhere(queue: Queue, held: Dispatch, report: str) -> None:
    with queue.backend.databases.central() as session, pytest.raises(LeaseLost):
        REPORTS[report](session, Lease(held.id, uuid4()))
    with queue.backend.databases.central() as session, pytest.raises(LeaseLost):
        REPORTS[report](session, Lease(uuid4(), uuid4()))


@pytest.mark.parametrize("report", REPORTS)
def test_a_late_report_is_refused_after_another_worker_took_over(
    queue: Queue, held: Dispatch, report: str
) -> None:
    later = utcnow() + timedelta(seconds=181)
    taken = queue.must_lease(now=later, worker_id="w2")
    assert (taken.id, taken.attempts) == (held.id, 2)
    with queue.backend.databases.central() as session, pytest.raises(LeaseLost):
        REPORTS[report](session, lease_of(held))
    assert queue.row(held.tenant_job_id).worker_id == "w2"


@pytest.mark.parametrize("report", REPORTS)
def test_a_late_report_is_refused_after_the_lease_was_taken_back(
    queue: Queue, held: Dispatch, report: str
) -> None:
    with queue.backend.databases.central() as session:
        taken = lost_leases.expire(session, [held.id], now=utcnow() + timedelta(seconds=181))
    assert [row.id for row in taken] == [held.id]
    with queue.backend.databases.central() as session, pytest.raises(LeaseLost):
        REPORTS[report](session, lease_of(held))


def test_a_heartbeat_extends_an_expired_lease_that_nobody_took(
    queue: Queue, held: Dispatch
) -> None:
    later = utcnow() + timedelta(seconds=500)
    with queue.backend.databases.central() as session:
        dispatches.extend(session, lease_of(held), seconds=180, progress=0.5, now=later)
    row = queue.row(held.tenant_job_id)
    assert row.lease_expires_at == later + timedelta(seconds=180)
    assert row.progress == 0.5


def test_progress_never_goes_back(queue: Queue, held: Dispatch) -> None:
    for said in (0.4, 0.2, 7.0):
        with queue.backend.databases.central() as session:
            row = dispatches.extend(session, lease_of(held), seconds=180, progress=said)
        assert row.progress == (0.4 if said < 1 else 1.0)


def test_a_requeue_gives_the_attempt_back_and_may_be_repeated(queue: Queue, held: Dispatch) -> None:
    for _ in range(2):
        with queue.backend.databases.central() as session:
            row = dispatches.requeue(session, lease_of(held), reason="spot")
        assert (row.status, row.attempts, row.worker_id) == ("queued", 0, None)
        assert row.last_error == "Requeued: spot"


def test_after_a_requeue_the_old_lease_can_do_nothing_else(queue: Queue, held: Dispatch) -> None:
    with queue.backend.databases.central() as session:
        dispatches.requeue(session, lease_of(held), reason="spot")
    for report in ("check", "extend"):
        with queue.backend.databases.central() as session, pytest.raises(LeaseLost):
            REPORTS[report](session, lease_of(held))


def test_completing_is_for_good_and_repeatable(queue: Queue, held: Dispatch) -> None:
    later = utcnow() + timedelta(seconds=7)
    for _ in range(2):
        with queue.backend.databases.central() as session:
            row = dispatches.complete(session, held.id, now=later)
        assert (row.status, row.progress) == ("completed", 1.0)
    assert row.duration_seconds == pytest.approx(7, abs=1)
    with queue.backend.databases.central() as session:
        assert dispatches.fail(session, held.id, error="late").status == "completed"
        assert dispatches.cancel(session, held.id).status == "completed"
        assert dispatches.check(session, lease_of(held)).status == "completed"
    assert queue.lease() is None


def test_the_holder_of_a_cancelled_job_is_told(queue: Queue, held: Dispatch) -> None:
    with queue.backend.databases.central() as session:
        dispatches.cancel(session, held.id)
    with queue.backend.databases.central() as session:
        row = dispatches.extend(session, lease_of(held), seconds=60)
    assert row.cancel_requested_at is not None
    assert row.status == "cancelled"


def test_attempts_are_limited(queue: Queue) -> None:
    queue.add(uuid4(), max_attempts=2)
    now = utcnow()
    for attempt in (1, 2):
        assert queue.must_lease(now=now).attempts == attempt
        now += timedelta(seconds=181)
    assert queue.lease(now=now) is None
    with queue.backend.databases.central() as session:
        assert lost_leases.find(session, limit=9, now=now) == []
        assert lost_leases.expire(session, every_id(session), now=now) == []
        assert [row.attempts for row in dispatches.exhausted(session, now=now)] == [2]


def test_the_last_try_is_not_retried(queue: Queue) -> None:
    queue.add(uuid4(), max_attempts=1)
    held = queue.must_lease()
    with queue.backend.databases.central() as session:
        last = dispatches.retry(session, lease_of(held), error="boom")
        assert last.status == DispatchStatus.LEASED
    assert queue.row(held.tenant_job_id).status == "leased"


def every_id(session: Session) -> list[UUID]:
    return list(session.scalars(select(Dispatch.id)))


def test_leases_that_ran_out_are_found_and_taken_back(queue: Queue) -> None:
    queue.add(uuid4(), count=25)
    now = utcnow()
    held = [queue.must_lease(now=now + timedelta(seconds=number)) for number in range(25)]
    later = now + timedelta(seconds=180 + 20)  # four are still good
    with queue.backend.databases.central() as session:
        first = lost_leases.find(session, limit=10, now=later)
        assert [lost.dispatch_id for lost in first] == [row.id for row in held[:10]]
        assert {lost.job_id for lost in first} == {row.tenant_job_id for row in held[:10]}
        assert {lost.pool for lost in first} == {"main"}
        assert len(lost_leases.find(session, limit=100, now=later)) == 21
        taken = lost_leases.expire(session, [row.id for row in held], now=later)
        assert {row.id for row in taken} == {row.id for row in held[:21]}
        assert lost_leases.find(session, limit=10, now=later) == []
        held_jobs = lost_leases.held_after_all(session, every_id(session))
    assert set(held_jobs) == {row.tenant_job_id for row in held[21:]}


def test_what_does_not_exist_is_not_found(queue: Queue) -> None:
    with queue.backend.databases.central() as session, pytest.raises(NotFound):
        dispatches.cancel(session, uuid4())


@pytest.mark.parametrize(
    "broken", [{"status": "lost"}, {"status": "leased"}, {"attempts": -1}, {"progress": 1.5}]
)
def test_the_database_refuses_impossible_rows(queue: Queue, broken: dict[str, object]) -> None:
    job = queue.add(uuid4())[0]
    with pytest.raises(IntegrityError), queue.backend.databases.central() as session:
        row = dispatches.find_by_job(session, queue.tenant_id, job)
        for name, value in broken.items():
            setattr(row, name, value)
