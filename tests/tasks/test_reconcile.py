"""What is away, or was missed, holds up nobody else."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from redis import Redis
from sqlalchemy import select

from models import dispatches, fleets, jobs, lanes, workflows
from models.audit import AuditLog
from models.base import utcnow
from models.dispatches import Dispatch
from models.files import File
from models.jobs import Job
from tasks import outcomes, reconcile, sweepers
from tasks.backend import Backend
from tests.fixtures import make_person
from tests.tasks import away, gpu, orders
from tests.tasks.test_sweepers import add_file


@pytest.fixture
def without_main(demo: Backend) -> Iterator[Backend]:
    """Another process, for which one pool of two is away."""
    other = Backend.open(replace(demo.settings, **away.pools(demo, "main")))
    yield other
    other.close()


def test_a_pool_that_is_away_holds_up_no_other_step(demo: Backend, without_main: Backend) -> None:
    ada = make_person(demo, tokens=100, pool="second")
    job, waiting = orders.order(demo, ada), orders.order(demo, ada)
    assert orders.lease_next(demo) is not None
    demo.later.close()
    with demo.databases.tenant(ada.tenant_id) as session:
        session.get_one(Job, waiting.id).status = "submitting"
    with Redis.from_url(demo.settings.redis_url) as redis:
        redis.flushdb()
        done = reconcile.run_once(without_main, now=utcnow() + timedelta(seconds=181))
        without_main.later.close()
        assert redis.llen("gpu-default") >= 2
    assert (done.healed, done.leases_taken_back) == (1, 1)
    taken_back = orders.dispatch_of(demo, job)
    assert taken_back is not None
    assert taken_back.status == "queued"


def test_a_pool_that_is_away_holds_up_no_other_pools_files(
    demo: Backend, without_main: Backend
) -> None:
    ada = make_person(demo, pool="second")
    file = add_file(demo, ada, stored=True)
    with demo.databases.tenant(ada.tenant_id) as session:
        session.get_one(File, file.id).deleted_at = utcnow()
    assert sweepers.run_once(without_main).objects_deleted == 1
    assert demo.store.head(file.object_key) is None


def test_a_job_held_while_its_workflow_moves_is_served_by_the_other_fleet(demo: Backend) -> None:
    ada = make_person(demo, tokens=100)
    for _ in range(3):
        orders.order(demo, ada)
    first, second = (orders.lease_next(demo) for _ in range(2))
    assert first is not None
    assert second is not None
    with demo.databases.central() as session:
        other = fleets.put(session, stage="dev", slug="other", name="Other")
        workflow = workflows.get(session, "colour-card")
        fleets.assign(session, other, workflow_id=workflow.id)
        dispatches.requeue(session, orders.lease_of(first), reason="spot")
        dispatches.requeue(session, orders.lease_of(second), reason="it", pause_seconds=60)
    demo.later.close()
    with Redis.from_url(demo.settings.redis_url) as redis:
        assert [reconcile.run_once(demo).moved for _ in range(2)] == [2, 0]
        demo.later.close()
        assert redis.llen("other") >= 2
    with demo.databases.central() as session:
        later = utcnow() + timedelta(seconds=61)
        served = lanes.waiting(session, fleet_id=other.id, limit=9, now=later)
    assert {first.id, second.id} < set(served)
    assert len(served) == 3


def test_only_what_waits_is_moved_and_only_to_a_fleet_that_is_open(demo: Backend) -> None:
    ada = make_person(demo, tokens=100)
    for _ in range(2):
        orders.order(demo, ada)
    held, given_back = (orders.lease_next(demo) for _ in range(2))
    assert held is not None
    assert given_back is not None
    with demo.databases.central() as session:
        other = fleets.put(session, stage="dev", slug="other", name="Other")
        other.is_active = False
        workflow = workflows.get(session, "colour-card")
        fleets.assign(session, other, workflow_id=workflow.id)
        dispatches.requeue(session, orders.lease_of(given_back), reason="spot")
    assert reconcile.run_once(demo).moved == 0
    with demo.databases.central() as session:
        fleets.get(session, stage="dev", slug="other").is_active = True
    assert reconcile.run_once(demo).moved == 1
    with demo.databases.central(read_only=True) as session:
        assert dispatches.check(session, orders.lease_of(held)).fleet_id == held.fleet_id


@pytest.mark.parametrize("awake", ["heartbeat", "retry granted"])
def test_a_worker_that_wakes_up_is_not_given_up(demo: Backend, awake: str) -> None:
    """The list of the dead was read; then one of them was not dead."""
    ada = make_person(demo, tokens=100)
    orders.order(demo, ada)
    held = orders.lease_next(demo)
    assert held is not None
    now = utcnow() + timedelta(seconds=181)
    with demo.databases.central() as session:
        session.get_one(Dispatch, held.id).max_attempts = 1
    with demo.databases.central() as session:
        assert [row.id for row in dispatches.exhausted(session, now=now)] == [held.id]
        if awake == "heartbeat":
            dispatches.extend(session, orders.lease_of(held), seconds=180, now=now)
        else:
            session.get_one(Dispatch, held.id).max_attempts = 2
    assert not outcomes.give_up(demo, held.id, now=now)
    with demo.databases.tenant(ada.tenant_id) as session:
        assert jobs.get(session, held.tenant_job_id).is_active
    assert outcomes.give_up(demo, held.id, now=now + timedelta(seconds=181)) == (
        awake == "heartbeat"
    )


@pytest.mark.parametrize("found_by", ["the reconciler", "a poll", "its last try"])
def test_a_lease_that_ran_out_is_noted_once(demo: Backend, found_by: str) -> None:
    ada = make_person(demo, tokens=100)
    orders.order(demo, ada)
    worker = gpu.join(demo)
    lease = gpu.take(demo, worker)
    now = utcnow() + timedelta(seconds=181)
    with demo.databases.central() as session:
        held = session.get_one(Dispatch, lease.dispatch_id)
        held.max_attempts = 1 if found_by == "its last try" else 3
        if found_by == "a poll":
            held.lease_expires_at = utcnow()
    if found_by == "a poll":
        assert gpu.poll(demo, worker) is not None
    else:
        for _ in range(2):
            reconcile.run_once(demo, now=now)
    with demo.databases.central(read_only=True) as session:
        log = select(AuditLog).where(AuditLog.event == "job.lease_expired")
        [noted] = session.scalars(log)
    assert (noted.dispatch_id, noted.details["attempt"]) == (lease.dispatch_id, 1)
    assert noted.details["job_id"]


def test_a_last_try_that_ran_out_is_noted_once_although_giving_it_up_was_cut_short(
    demo: Backend, without_main: Backend
) -> None:
    ada = make_person(demo, tokens=100)
    orders.order(demo, ada)
    held = orders.lease_next(demo)
    assert held is not None
    with demo.databases.central() as session:
        session.get_one(Dispatch, held.id).max_attempts = 1
    now = utcnow() + timedelta(seconds=181)
    for backend in (without_main, demo, demo):
        reconcile.run_once(backend, now=now)
    with demo.databases.central(read_only=True) as session:
        events = list(session.scalars(select(AuditLog.event).order_by(AuditLog.at)))
    ends = [event for event in events if event.startswith("job.") and event != "job.lease"]
    assert ends == ["job.lease_expired", "job.fail"]
