"""In which order jobs are served."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import dispatches, fleets, hot_worker, lanes, workflows
from models.base import utcnow
from models.errors import NotPossibleNow
from models.workflows import Recipe
from tasks.backend import Backend
from tests.models.waiting import Queue, lease_of, make_queue


@pytest.fixture
def queue(backend: Backend) -> Queue:
    return make_queue(backend)


def test_one_user_is_served_first_come_first_served(queue: Queue) -> None:
    jobs = queue.add(uuid4(), count=8)
    assert queue.drain() == jobs


def test_priority_comes_first(queue: Queue) -> None:
    low, mid, high = (queue.add(uuid4(), priority=p)[0] for p in (-5, 0, 7))
    assert queue.drain() == [high, mid, low]


def test_users_take_turns(queue: Queue) -> None:
    """A queues ten, then B one, then C three."""
    a, b, c = uuid4(), uuid4(), uuid4()
    of = {
        job: who
        for who, jobs in (
            ("A", queue.add(a, count=10)),
            ("B", queue.add(b)),
            ("C", queue.add(c, count=3)),
        )
        for job in jobs
    }
    assert "".join(of[job] for job in queue.drain()) == "ABCACACAAAAAAA"


def test_a_user_with_500_jobs_delays_another_by_one_job(queue: Queue) -> None:
    flood = queue.add(uuid4(), count=500)
    single = queue.add(uuid4())[0]
    served = [queue.must_lease().tenant_job_id for _ in range(3)]
    assert served.index(single) <= 1
    # Not only at the beginning: in the middle of the flood as well.
    for _ in range(100):
        queue.must_lease()
    late = queue.add(uuid4())[0]
    assert late in [queue.must_lease().tenant_job_id for _ in range(2)]
    assert set(served) - {single} <= set(flood)


def test_a_requeued_job_is_next(queue: Queue) -> None:
    a, b = uuid4(), uuid4()
    first, *_ = queue.add(a, count=5)
    queue.add(b, count=5)
    held = queue.must_lease()
    assert held.tenant_job_id == first
    for _ in range(3):
        queue.must_lease()
    with queue.backend.databases.central() as session:
        dispatches.requeue(session, lease_of(held), reason="spot")
    again = queue.must_lease()
    assert (again.tenant_job_id, again.attempts) == (first, 1)


def test_a_requeued_job_is_next_even_if_the_queue_was_empty_meanwhile(queue: Queue) -> None:
    held = [queue.add(uuid4()) and queue.must_lease() for _ in range(3)][-1]
    for _ in range(20):  # turns would grow here if nothing held them
        queue.add(uuid4())
        queue.must_lease()
    newcomers = queue.add(uuid4(), count=2)
    with queue.backend.databases.central() as session:
        dispatches.requeue(session, lease_of(held), reason="spot")
    assert queue.drain() == [held.tenant_job_id, *newcomers]


def test_a_workers_workflows_are_the_only_ones_it_gets(queue: Queue) -> None:
    with queue.backend.databases.central() as session:
        other = workflows.put(
            session,
            slug="other",
            name="o",
            kind="image",
            recipe=Recipe({"1": {}}, None, []),
        ).id
    foreign = queue.add(uuid4(), workflow_id=other)[0]
    mine = queue.add(uuid4())[0]
    assert queue.must_lease().tenant_job_id == mine
    assert queue.lease() is None
    assert queue.lease(workflow_ids=[]) is None
    assert queue.must_lease(workflow_ids=[other]).tenant_job_id == foreign


def test_a_workers_providers_are_the_only_ones_it_gets(queue: Queue) -> None:
    cloud = queue.add(uuid4(), provider="cloud")[0]
    own = queue.add(uuid4())[0]
    assert queue.must_lease().tenant_job_id == own
    assert queue.lease() is None
    assert queue.lease(providers=[]) is None
    assert queue.must_lease(providers=["self_hosted", "cloud"]).tenant_job_id == cloud


def test_two_providers_are_served_in_one_order(queue: Queue) -> None:
    low = queue.add(uuid4(), provider="cloud")[0]
    high = queue.add(uuid4(), priority=1)[0]
    both = ["cloud", "self_hosted"]
    assert [queue.must_lease(providers=both).tenant_job_id for _ in range(2)] == [high, low]


def test_another_fleets_jobs_are_not_served(queue: Queue) -> None:
    queue.add(uuid4())
    other = make_queue(queue.backend)
    assert other.lease(workflow_ids=[queue.workflow_id]) is None


def test_joining_twice_makes_one_dispatch(queue: Queue) -> None:
    job_id, user_id = uuid4(), uuid4()
    made = []
    for _ in range(2):
        with queue.backend.databases.central() as session:
            made.append(
                lanes.join(
                    session,
                    tenant_id=queue.tenant_id,
                    tenant_job_id=job_id,
                    user_id=user_id,
                    workflow_id=queue.workflow_id,
                    fleet_id=queue.fleet_id,
                    provider="self_hosted",
                )
            )
    assert [dispatch_id is not None for dispatch_id in made] == [True, False]
    assert queue.drain() == [job_id]


def test_a_raised_priority_takes_effect_at_once(queue: Queue) -> None:
    jobs = queue.add(uuid4(), count=5)
    with queue.backend.databases.central() as session:
        lanes.set_priority(session, queue.row(jobs[3]).id, priority=1)
    assert queue.drain() == [jobs[3], jobs[0], jobs[1], jobs[2], jobs[4]]


def test_to_the_front_is_ahead_of_everything(queue: Queue) -> None:
    ordinary = queue.add(uuid4(), count=3)
    urgent = queue.add(uuid4(), priority=50)[0]
    for job in (ordinary[1], ordinary[2]):
        with queue.backend.databases.central() as session:
            lanes.to_front(session, queue.row(job).id)
    assert queue.drain() == [ordinary[2], ordinary[1], urgent, ordinary[0]]


def test_what_runs_cannot_be_moved(queue: Queue) -> None:
    queue.add(uuid4())
    running = queue.must_lease()
    with queue.backend.databases.central() as session, pytest.raises(NotPossibleNow):
        lanes.set_priority(session, running.id, priority=3)
    with queue.backend.databases.central() as session, pytest.raises(NotPossibleNow):
        lanes.to_front(session, running.id)


def test_a_job_that_backs_off_is_stepped_over_until_it_is_due(queue: Queue) -> None:
    first, second = queue.add(uuid4(), count=2)
    now = utcnow()
    held = queue.must_lease(now=now)
    with queue.backend.databases.central() as session:
        dispatches.retry(session, lease_of(held), error="boom", backoff_seconds=60, now=now)
    assert queue.must_lease(now=now).tenant_job_id == second
    assert queue.lease(now=now) is None
    due = queue.must_lease(now=now + timedelta(seconds=61))
    assert (due.tenant_job_id, due.attempts) == (first, 2)


def test_moving_a_workflow_takes_its_waiting_jobs_along(queue: Queue) -> None:
    jobs = queue.add(uuid4(), count=3)
    running = queue.must_lease()
    other = make_queue(queue.backend)
    with queue.backend.databases.central() as session:
        target = session.get_one(fleets.Fleet, other.fleet_id)
        fleets.assign(session, target, workflow_id=queue.workflow_id)
    assert queue.lease() is None
    moved = [other.must_lease(workflow_ids=[queue.workflow_id]).tenant_job_id for _ in range(2)]
    assert [running.tenant_job_id, *moved] == jobs


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(arrivals=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=25))
def test_any_arrivals_are_served_fairly(sqlite: Backend, arrivals: list[tuple[int, int]]) -> None:
    """By priority; inside one, each user's jobs in order, and nobody twice in a round."""
    queue = make_queue(sqlite)
    users = [uuid4() for _ in range(4)]
    told = {
        queue.add(users[user], priority=priority)[0]: (priority, user, number)
        for number, (user, priority) in enumerate(arrivals)
    }
    served = [told[job] for job in queue.drain()]
    assert sorted(served) == sorted(told.values())
    assert [priority for priority, _, _ in served] == sorted(
        (priority for priority, _, _ in served), reverse=True
    )
    for _, group in itertools.groupby(served, key=lambda job: job[0]):
        _check_rounds(list(group))


def test_what_waits_is_what_could_be_leased_now(queue: Queue) -> None:
    """Ready ones, and those whose pause is over; tickets are counted against them."""
    ready, paused, held = queue.add(uuid4())[0], queue.add(uuid4())[0], queue.add(uuid4())[0]
    leases = {job: lease_of(queue.must_lease()) for job in (ready, paused, held)}
    now = utcnow()
    with queue.backend.databases.central() as session:
        dispatches.requeue(session, leases[ready], reason="spot")
        dispatches.retry(session, leases[paused], error="e", backoff_seconds=60, now=now)
    for seconds, expected in ((0, {ready}), (59, {ready}), (60, {ready, paused})):
        with queue.backend.databases.central(read_only=True) as session:
            waiting = lanes.waiting(
                session, fleet_id=queue.fleet_id, limit=9, now=now + timedelta(seconds=seconds)
            )
        assert set(waiting) == {queue.row(job).id for job in expected}
    with queue.backend.databases.central(read_only=True) as session:
        later = now + timedelta(seconds=60)
        assert len(lanes.waiting(session, fleet_id=queue.fleet_id, limit=1, now=later)) == 1


def _check_rounds(served: list[tuple[int, int, int]]) -> None:
    """All arrived before the first lease, so round n is every user's n-th job."""
    seen: dict[int, int] = {}
    rounds = []
    for _, user, _ in served:
        seen[user] = seen.get(user, 0) + 1
        rounds.append(seen[user])
    assert rounds == sorted(rounds)
    for user in seen:
        numbers = [number for _, who, number in served if who == user]
        assert numbers == sorted(numbers)


def test_32_workers_lease_500_jobs_once_each_and_in_order(postgres: Backend) -> None:
    queue = make_queue(postgres)
    users = [uuid4() for _ in range(20)]
    expected = {}
    for number in range(500):
        job = queue.add(users[number % 20], priority=number % 3)[0]
        expected[job] = queue.row(job)
    taken: dict[int, list[UUID]] = {worker: [] for worker in range(32)}
    start = threading.Barrier(32)

    def work(worker: int) -> None:
        start.wait()
        while dispatch := queue.lease(worker_id=f"w{worker}"):
            taken[worker].append(dispatch.tenant_job_id)

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(work, range(32)))
    served = [job for jobs in taken.values() for job in jobs]
    assert len(served) == len(set(served)) == 500
    ideal = sorted(
        expected, key=lambda job: (-expected[job].priority, expected[job].turn, expected[job].seq)
    )
    place = {job: index for index, job in enumerate(ideal)}
    # What a worker gets is the best of what is left, so it never gets a better one later.
    # (Between workers there is no order to see: their leases commit side by side.)
    for jobs in taken.values():
        assert [place[job] for job in jobs] == sorted(place[job] for job in jobs)


def test_the_hot_path_leases_what_the_plain_path_would(postgres: Backend) -> None:
    queue = make_queue(postgres)
    jobs = queue.add(uuid4(), count=4)
    given = {
        "fleet_id": queue.fleet_id,
        "providers": ["self_hosted", "cloud"],
        "workflow_ids": [uuid4(), queue.workflow_id],
        "worker_id": "w9",
        "lease_seconds": 60,
    }
    for job in jobs:
        leased = hot_worker.lease(postgres.databases, **given)  # type: ignore[arg-type]
        assert leased is not None
        row = queue.row(job)
        columns = [column.name for column in row.__table__.columns]
        assert {c: getattr(leased, c) for c in columns} == {c: getattr(row, c) for c in columns}
        assert (row.status, row.worker_id, row.attempts) == ("leased", "w9", 1)
    assert hot_worker.lease(postgres.databases, **given) is None  # type: ignore[arg-type]
    assert hot_worker.lease(postgres.databases, **(given | {"providers": []})) is None  # type: ignore[arg-type]
