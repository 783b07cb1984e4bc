"""How fast a fleet works, from what it did."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import update

from models import dispatches, paces
from models.base import utcnow
from models.dispatches import Dispatch
from models.paces import Pace
from tasks.backend import Backend
from tests.models.waiting import Queue, make_queue


def done(queue: Queue, *, seconds: float) -> None:
    queue.add(uuid4())
    dispatch = queue.must_lease()
    with queue.backend.databases.central() as session:
        dispatches.complete(session, dispatch.id)
        session.execute(
            update(Dispatch).where(Dispatch.id == dispatch.id).values(duration_seconds=seconds)
        )


def pace(queue: Queue) -> Pace:
    with queue.backend.databases.central(read_only=True) as session:
        return paces.of_fleet(
            session, queue.fleet_id, present_since=utcnow() - timedelta(minutes=3)
        )


@pytest.fixture
def queue(backend: Backend) -> Queue:
    return make_queue(backend)


def test_a_fleet_that_has_done_nothing_has_no_pace(queue: Queue) -> None:
    assert pace(queue) == Pace()


def test_jobs_take_what_the_last_ones_took(queue: Queue) -> None:
    for seconds in (10, 20, 60):
        done(queue, seconds=seconds)
    queue.add(uuid4(), count=2)
    queue.must_lease()
    found = pace(queue)
    assert (found.seconds, found.running, found.workers) == (30, 1, 0)
    assert found.job_seconds(queue.workflow_id) == 30
    assert found.job_seconds(uuid4()) == 30  # one that nobody has run yet


def test_only_the_last_ones_count(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "LAST", 2)
    for seconds in (500, 10, 20):
        done(queue, seconds=seconds)
    assert pace(queue).seconds == 15


def test_failed_jobs_say_nothing_about_how_long_one_takes(queue: Queue) -> None:
    done(queue, seconds=10)
    queue.add(uuid4())
    with queue.backend.databases.central() as session:
        dispatches.fail(session, queue.must_lease().id, error="x")
    assert pace(queue).seconds == 10


@pytest.mark.parametrize(
    ("workers", "running", "ahead", "jobs_before"),
    [
        (1, 0, 0, 0),  # idle: at once
        (0, 0, 0, 0),  # asleep: it will be woken
        (1, 1, 0, 0.5),  # whoever runs is half done
        (1, 1, 3, 3.5),
        (4, 2, 1, 0),
        (4, 4, 7, 7.5 / 4),
    ],
)
def test_the_wait_is_shared_by_all_workers(
    workers: int, running: int, ahead: int, jobs_before: float
) -> None:
    known: dict[UUID, float] = {}
    made = Pace(workers=workers, running=running, seconds=10, seconds_of=known)
    assert made.wait_seconds(ahead, job_seconds=10) == pytest.approx(10 * jobs_before)
