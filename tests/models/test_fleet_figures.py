"""The figures of fleets, by their definitions, against rows that were made by hand."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event, update

from models import dispatches, fleet_figures, fleets
from models.audit import AuditLog
from models.base import utcnow
from models.dead_letters import DeadLetter
from models.dispatches import Dispatch
from models.fleet_figures import FleetFigures
from models.fleets import Fleet
from models.workers import Worker
from tasks.backend import Backend
from tests.models.waiting import Queue, lease_of, make_queue

NOW = utcnow()


@pytest.fixture
def queue(backend: Backend) -> Queue:
    return make_queue(backend)


def figures(queue: Queue, now: datetime = NOW) -> FleetFigures:
    with queue.backend.databases.central(read_only=True) as session:
        found = fleet_figures.of_stage(session, stage="dev", now=now)
        slug = session.get_one(Fleet, queue.fleet_id).slug
    return next(one for one in found if one.slug == slug)


def ended(queue: Queue, status: str, *, ago: float, seconds: float | None = None) -> None:
    """A job that ended so long ago, after so many seconds."""
    [job_id] = queue.add(uuid4())
    with queue.backend.databases.central() as session:
        session.execute(
            update(Dispatch)
            .where(Dispatch.tenant_job_id == job_id)
            .values(
                status=status, updated_at=NOW - timedelta(seconds=ago), duration_seconds=seconds
            )
        )


def add_worker(queue: Queue, *, ago: float = 0, **given: Any) -> None:
    with queue.backend.databases.central() as session:
        session.add(
            Worker(
                worker_id=uuid4().hex,
                fleet_id=queue.fleet_id,
                token_hash=uuid4().hex,
                providers=["self_hosted"],
                capabilities={},
                last_seen_at=NOW - timedelta(seconds=ago),
                **given,
            )
        )


def test_a_fleet_with_nothing_to_do_has_figures_and_no_median(queue: Queue) -> None:
    found = figures(queue)
    assert (found.queue_depth, found.backlog_per_instance, found.active_workers) == (0, 0, 0)
    assert (found.error_rate, found.available_capacity, found.oldest_waiting_seconds) == (0, 0, 0)
    assert found.job_processing_p50 is None
    assert (found.lease_expired_count, found.spot_interruption_count) == (0, 0)


def test_what_waits_backs_off_or_runs_is_the_depth_of_the_queue(queue: Queue) -> None:
    queue.add(uuid4(), count=5)
    queue.must_lease()
    held = queue.must_lease()
    with queue.backend.databases.central() as session:
        dispatches.requeue(session, lease_of(held), reason="r", pause_seconds=600)
    ended(queue, "completed", ago=1)
    found = figures(queue)
    assert (found.waiting, found.running, found.queue_depth) == (4, 1, 5)


def test_the_backlog_is_shared_by_active_workers_or_there_is_none_to_share_it(
    queue: Queue,
) -> None:
    queue.add(uuid4(), count=6)
    assert figures(queue).backlog_per_instance == 6
    for ago in (0, 299, 301):
        add_worker(queue, ago=ago)
    add_worker(queue, is_approved=False)
    found = figures(queue)
    assert (found.active_workers, found.backlog_per_instance) == (2, 3)


def test_capacity_is_what_active_workers_could_take_more(queue: Queue) -> None:
    add_worker(queue, max_concurrency=3, current_load=1)
    add_worker(queue, max_concurrency=1, current_load=1)
    add_worker(queue, max_concurrency=1, current_load=2)  # is no reason to subtract from others
    add_worker(queue, max_concurrency=5, is_draining=True)
    add_worker(queue, max_concurrency=5, ago=301)
    found = figures(queue)
    assert (found.available_capacity, found.active_workers) == (2, 4)


@pytest.mark.parametrize(
    ("durations", "median"), [([7.0], 7.0), ([1.0, 90.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 90.0], 3.0)]
)
def test_the_median_of_the_last_ten_minutes(
    queue: Queue, durations: list[float], median: float
) -> None:
    for seconds in durations:
        ended(queue, "completed", ago=599, seconds=seconds)
    ended(queue, "completed", ago=601, seconds=1000)
    ended(queue, "failed", ago=1, seconds=1000)
    ended(queue, "completed", ago=1, seconds=None)  # it was settled after a crash
    assert figures(queue).job_processing_p50 == pytest.approx(median)


def test_the_share_of_failures_in_the_last_five_minutes(queue: Queue) -> None:
    for status, ago in [("failed", 299), ("completed", 1), ("completed", 2), ("completed", 3)]:
        ended(queue, status, ago=ago)
    for status, ago in [("failed", 301), ("completed", 301), ("cancelled", 1)]:
        ended(queue, status, ago=ago)
    found = figures(queue)
    assert (found.completed, found.failed, found.error_rate) == (3, 1, 0.25)


def note(queue: Queue, event: str, *, ago: float, dispatch_id: UUID, **details: Any) -> None:
    with queue.backend.databases.central() as session:
        session.add(
            AuditLog(
                at=NOW - timedelta(seconds=ago),
                event=event,
                actor="system",
                dispatch_id=dispatch_id,
                details=details,
            )
        )


def test_leases_that_ran_out_in_the_last_five_minutes(queue: Queue) -> None:
    queue.add(uuid4())
    held = queue.must_lease()
    for ago in (1, 299, 301):
        note(queue, "job.lease_expired", ago=ago, dispatch_id=held.id)
    note(queue, "job.lease", ago=1, dispatch_id=held.id)
    assert figures(queue).lease_expired_count == 2


def test_only_jobs_that_came_back_because_of_spot_count_as_its_interruptions(queue: Queue) -> None:
    queue.add(uuid4())
    held = queue.must_lease()
    for reason, ago in [
        ("spot interruption: terminate at 2026-11-18T12:00:00+00:00", 1),
        ("SPOT_INTERRUPTION", 299),
        ("spot interruption", 301),
        ("rebalance recommendation", 1),
        ("scale-in", 1),
        ("the worker was stopped", 1),
    ]:
        note(queue, "job.requeue", ago=ago, dispatch_id=held.id, reason=reason)
    note(queue, "job.requeue", ago=1, dispatch_id=held.id)
    assert figures(queue).spot_interruption_count == 2


def test_the_age_of_the_oldest_that_waits_counts_from_its_order(queue: Queue) -> None:
    first, second = queue.add(uuid4(), count=2)
    with queue.backend.databases.central() as session:
        for job_id, minutes in ((first, 60), (second, 30)):
            session.execute(
                update(Dispatch)
                .where(Dispatch.tenant_job_id == job_id)
                .values(created_at=NOW - timedelta(minutes=minutes))
            )
    assert figures(queue).oldest_waiting_seconds == 3600
    held = queue.must_lease()
    assert figures(queue).oldest_waiting_seconds == 1800
    with queue.backend.databases.central() as session:
        dispatches.retry(session, lease_of(held), error="e", backoff_seconds=600)
    assert figures(queue).oldest_waiting_seconds == 3600


def test_dead_letters_that_wait_for_a_person(queue: Queue) -> None:
    for status in ("open", "open", "discarded"):
        [job_id] = queue.add(uuid4())
        with queue.backend.databases.central() as session:
            dispatch_id = queue.row(job_id).id
            session.add(DeadLetter(dispatch_id=dispatch_id, status=status, reason="r"))
    assert figures(queue).dead_letters_open == 2


def test_every_fleet_of_the_stage_has_figures_of_its_own(queue: Queue) -> None:
    other = make_queue(queue.backend)
    queue.add(uuid4(), count=3)
    other.add(uuid4())
    add_worker(other)
    with queue.backend.databases.central() as session:
        session.get_one(Fleet, other.fleet_id).is_active = False
        fleets.put(session, stage="prod", slug="elsewhere", name="E")
        found = fleet_figures.of_stage(session, stage="dev", now=NOW)
    assert [one.slug for one in found] == sorted(one.slug for one in found)
    assert sorted(one.queue_depth for one in found) == [1, 3]
    assert {one.is_active: one.active_workers for one in found} == {True: 0, False: 1}
    assert {one.stage for one in found} == {"dev"}


def test_however_many_fleets_there_are_the_statements_are_few(backend: Backend) -> None:
    statements = []
    engine = backend.databases.engine("central")
    with backend.databases.central() as session:
        for number in range(200):
            fleets.put(session, stage="dev", slug=f"f-{number:03}", name="F")
    event.listen(engine, "before_cursor_execute", lambda *_: statements.append(1))
    with backend.databases.central(read_only=True) as session:
        assert len(fleet_figures.of_stage(session, stage="dev", now=NOW)) == 200
    assert len(statements) < 12


def test_what_is_counted_is_bounded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_figures, "MOST", 3)
    queue.add(uuid4(), count=5)
    assert figures(queue).waiting == 3
