"""Places in the queue, against counting."""

import random
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert

from models import lane_places
from models.base import row_id, utcnow
from models.dispatches import Dispatch, DispatchStatus
from tasks.backend import Backend
from tests.models.waiting import Queue, make_queue


def keys(queue: Queue) -> list[lane_places.Key]:
    with queue.backend.databases.central(read_only=True) as session:
        return lane_places.head(session, fleet_id=queue.fleet_id, provider="self_hosted")


def place(queue: Queue, job_id: UUID) -> int | None:
    return lane_places.place_in_head(queue.row(job_id), keys(queue))


def crowd(queue: Queue, count: int) -> list[UUID]:
    """So many waiting rows at once, in order, in a lane of their own making."""
    now, jobs = utcnow(), [uuid4() for _ in range(count)]
    rows = [
        {
            "id": row_id(),
            "seq": 1_000_000 + number,
            "tenant_id": queue.tenant_id,
            "tenant_job_id": job_id,
            "user_id": uuid4(),
            "workflow_id": queue.workflow_id,
            "fleet_id": queue.fleet_id,
            "provider": "self_hosted",
            "status": DispatchStatus.QUEUED,
            "priority": 0,
            "turn": number // 7,
            "created_at": now,
            "updated_at": now,
        }
        for number, job_id in enumerate(jobs)
    ]
    random.Random(7).shuffle(rows)
    with queue.backend.databases.central() as session:
        session.execute(insert(Dispatch), rows)
    return jobs


def test_places_count_who_is_ahead(queue: Queue) -> None:
    jobs = queue.add(uuid4(), count=4)
    ahead = queue.add(uuid4(), priority=1)[0]
    assert [place(queue, job) for job in (ahead, *jobs)] == [0, 1, 2, 3, 4]
    assert place(queue, queue.must_lease().tenant_job_id) is None


def test_one_that_joined_after_the_head_was_read_has_its_place_in_it(queue: Queue) -> None:
    jobs, before = queue.add(uuid4(), count=3), keys(queue)
    late, first = queue.add(uuid4())[0], queue.add(uuid4(), priority=3)[0]
    assert lane_places.place_in_head(queue.row(late), before) == 1  # turns: behind the first
    assert lane_places.place_in_head(queue.row(first), before) == 0
    assert lane_places.place_in_head(queue.row(jobs[2]), before) == 2


def test_behind_the_head_the_ladder_tells_the_place_to_about_a_rung(queue: Queue) -> None:
    jobs = crowd(queue, 3 * lane_places.RUNG + 500)
    head = keys(queue)
    assert len(head) == lane_places.HEAD
    assert [lane_places.place_in_head(queue.row(jobs[n]), head) for n in (0, 500, 999)] == [
        0,
        500,
        999,
    ]
    with queue.backend.databases.central(read_only=True) as session:
        rungs = lane_places.ladder(session, fleet_id=queue.fleet_id, provider="self_hosted")
    assert len(rungs) == 4
    for true_place in (1000, 1400, 2000, 2999, 3499):
        row = queue.row(jobs[true_place])
        assert lane_places.place_in_head(row, head) is None
        assert abs(lane_places.place_on_ladder(row, rungs) - true_place) <= lane_places.RUNG


def test_lanes_are_apart(queue: Queue, backend: Backend) -> None:
    other = make_queue(backend)
    other.add(uuid4(), count=5)
    elsewhere = queue.add(uuid4(), provider="cloud")[0]
    [job] = queue.add(uuid4())
    assert place(queue, job) == 0
    assert keys(queue) == [lane_places.key_of(queue.row(job))]
    assert queue.row(elsewhere).provider == "cloud"


@pytest.fixture
def queue(backend: Backend) -> Queue:
    return make_queue(backend)
