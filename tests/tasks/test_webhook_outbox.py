"""Every job that ends is told, once for each endpoint that listens, whatever crashes when."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import select, text

from models import deliveries, jobs, messages, webhooks
from models.base import utcnow
from models.fleets import WorkflowFleet
from models.jobs import Job
from models.messages import Message
from models.webhooks import WebhookDelivery, WebhookEndpoint
from tasks import catalog, money, orphans, outcomes, reconcile, reports, submission
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person, make_person
from tests.tasks import gpu, orders
from tests.tasks.receivers import deliveries_of, endpoint

URL = "https://hooks.example.com/"


@pytest.fixture
def ada(demo: Backend, person: MakePerson) -> Person:
    return person(tokens=100)


def told(backend: Backend) -> list[dict[str, Any]]:
    """The data of every message, by its type."""
    return [row.payload["data"] | {"type": row.payload["type"]} for row in deliveries_of(backend)]


def held(backend: Backend) -> outcomes.Lease:
    return gpu.take(backend, gpu.join(backend))


def completes(backend: Backend, job: Job) -> None:
    lease = held(backend)
    for _ in range(2):
        outcomes.complete(backend, lease, outputs=[])


def fails(backend: Backend, job: Job) -> None:
    lease = held(backend)
    for _ in range(2):
        outcomes.fail(backend, lease, code="too_dark", message="Too dark.", error="Trace")


def is_cancelled(backend: Backend, job: Job) -> None:
    for _ in range(2):
        outcomes.cancel(backend, job.tenant_id, job.id)


def is_cancelled_while_it_runs(backend: Backend, job: Job) -> None:
    lease = held(backend)
    outcomes.cancel(backend, job.tenant_id, job.id)
    outcomes.complete(backend, lease, outputs=[])


def is_refunded_by_a_person(backend: Backend, job: Job) -> None:
    money.refund(backend, job_id=job.id, note="x", actor="cli")


def is_given_up(backend: Backend, job: Job) -> None:
    worker = gpu.join(backend)
    now = utcnow()
    for _ in range(backend.settings.max_attempts):
        assert gpu.poll(backend, worker) is not None
        now += timedelta(seconds=backend.settings.lease_seconds + 1)
        with backend.databases.central() as session:
            session.execute(
                text("UPDATE ai_job_dispatches SET lease_expires_at = :then WHERE status='leased'"),
                {"then": "2020-01-01 00:00:00"},
            )
        reconcile.run_once(backend)


def ended_before_a_crash(backend: Backend, job: Job) -> None:
    """In its pool; the process died before central. The reconciler takes the lease back."""
    held(backend)
    with backend.databases.tenant(job.tenant_id) as session:
        jobs.complete(session, job.id, outputs=[])
    assert told(backend) == []
    reconcile.run_once(backend, now=utcnow() + timedelta(seconds=181))


def was_cancelled_before_a_crash(backend: Backend, job: Job) -> None:
    """It waits no more, but its dispatch does: the next poll finds out."""
    with backend.databases.tenant(job.tenant_id) as session:
        jobs.cancel(session, job.id)
    assert gpu.poll(backend, gpu.join(backend)) is None


def can_not_be_put_together(backend: Backend, job: Job) -> None:
    backend.later.close()
    with backend.databases.tenant(job.tenant_id) as session:
        stored = session.get_one(Job, job.id)
        stored.input_payload = stored.input_payload | {"content_hash": "0" * 64}
    assert gpu.poll(backend, gpu.join(backend)) is None


@pytest.mark.parametrize(
    ("ends", "event", "code"),
    [
        (completes, "completed", None),
        (fails, "failed", "too_dark"),
        (is_cancelled, "cancelled", "cancelled"),
        (is_cancelled_while_it_runs, "cancelled", "cancelled"),
        (is_refunded_by_a_person, "cancelled", "cancelled"),
        (is_given_up, "failed", "attempts_exhausted"),
        (ended_before_a_crash, "completed", None),
        (was_cancelled_before_a_crash, "cancelled", "cancelled"),
        (can_not_be_put_together, "failed", "not_runnable"),
    ],
)
def test_every_end_is_told_once(
    demo: Backend, ada: Person, ends: Callable[[Backend, Job], None], event: str, code: str | None
) -> None:
    endpoint(demo, ada, URL)
    job = orders.order(demo, ada)
    ends(demo, job)
    for later in (timedelta(), timedelta(hours=1), timedelta(hours=2)):
        reconcile.run_once(demo, now=utcnow() + later)
    [row] = deliveries_of(demo)
    assert (row.status, row.attempts, row.event) == ("pending", 0, f"job.{event}")
    assert row.payload["type"] == row.event
    assert row.message_id == Message(row.event, row.event_key, utcnow(), {}).id
    assert row.payload["timestamp"].endswith("Z")
    assert row.payload["data"] == {
        "job_id": str(job.id),
        "user_id": str(ada.user_id),
        "status": event,
        "error_code": code,
    }


def test_a_job_whose_row_is_gone_is_told_as_failed(demo: Backend, ada: Person) -> None:
    endpoint(demo, ada, URL)
    job = orders.order(demo, ada)
    dispatch = orders.dispatch_of(demo, job)
    assert dispatch is not None
    outcomes.end_without_job(demo, dispatch.id, error="gone")
    assert [one["error_code"] for one in told(demo)] == ["not_runnable"]


# Jobs that end before they have a dispatch


@pytest.fixture
def undispatched(demo: Backend, ada: Person) -> Job:
    """Paid for, and then the submit died: there is no dispatch."""
    endpoint(demo, ada, URL)
    job = orders.order(demo, ada)
    demo.later.close()
    with demo.databases.tenant(ada.tenant_id) as session:
        session.get_one(Job, job.id).status = "submitting"
    with demo.databases.central() as session:
        session.execute(text("DELETE FROM ai_job_dispatches"))
    job.status = "submitting"
    return job


def withdraw_the_fleet(backend: Backend) -> None:
    with backend.databases.central() as session:
        session.query(WorkflowFleet).delete()


def test_one_that_nobody_could_dispatch_is_told(demo: Backend, undispatched: Job) -> None:
    withdraw_the_fleet(demo)
    for _ in range(2):
        reconcile.run_once(demo, now=utcnow() + timedelta(seconds=301))
    assert [(one["type"], one["error_code"]) for one in told(demo)] == [
        ("job.failed", "submission_timeout")
    ]


@pytest.mark.parametrize("how", ["timeout", "cancel", "refund"])
def test_and_also_if_the_process_dies_between_the_databases(
    demo: Backend, undispatched: Job, how: str
) -> None:
    """No dispatch leads to it, and it is not `submitting` any more: the job itself has to say."""
    with demo.databases.tenant(undispatched.tenant_id) as session:
        if how == "timeout":
            jobs.fail(session, undispatched.id, code="submission_timeout", message="x")
        elif how == "cancel":
            jobs.cancel(session, undispatched.id)
        else:
            jobs.compensate(session, undispatched.id, note="x")
    assert told(demo) == []
    assert reconcile.run_once(demo).settled == 0  # somebody may be at it
    assert [settled_in_a_while(demo) for _ in range(2)] == [1, 0]
    assert len(told(demo)) == 1


def settled_in_a_while(backend: Backend) -> int:
    settled = reconcile.run_once(backend, now=utcnow() + timedelta(seconds=11)).settled
    backend.later.close()
    return settled


def test_a_crash_between_the_databases_costs_seconds_and_not_a_lease(
    demo: Backend, ada: Person
) -> None:
    endpoint(demo, ada, URL)
    job = orders.order(demo, ada)
    held(demo)
    with demo.databases.tenant(ada.tenant_id) as session:
        jobs.fail(session, job.id, code="too_dark", message="Too dark.")
    assert settled_in_a_while(demo) == 1
    dispatch = orders.dispatch_of(demo, job)
    assert dispatch is not None
    assert dispatch.status == "failed"
    assert [one["error_code"] for one in told(demo)] == ["too_dark"]


def test_a_job_that_ends_after_its_dispatch_is_told_too(demo: Backend, ada: Person) -> None:
    """As after a backup: central was ahead, so nothing is left that could follow."""
    job = orders.order(demo, ada)
    dispatch = orders.dispatch_of(demo, job)
    assert dispatch is not None
    outcomes.end_without_job(demo, dispatch.id, error="gone")
    endpoint(demo, ada, URL)
    demo.later.close()
    assert orphans.mend_jobs(demo) == 1
    assert settled_in_a_while(demo) == 1
    assert [one["error_code"] for one in told(demo)] == ["job_lost"]


def test_what_ended_in_peace_leaves_no_note(demo: Backend, ada: Person) -> None:
    for ends in (completes, fails, is_cancelled):
        ends(demo, orders.order(demo, ada))
    demo.later.close()
    with demo.databases.pool("main") as session:
        assert session.query(Job).filter(Job.untold_since.is_not(None)).all() == []


def test_a_pool_that_notes_it_twice_tells_it_once(demo: Backend, undispatched: Job) -> None:
    """Told, and the process died before that was noted in the pool."""
    outcomes.cancel(demo, undispatched.tenant_id, undispatched.id)
    demo.later.close()
    with demo.databases.tenant(undispatched.tenant_id) as session:
        session.get_one(Job, undispatched.id).untold_since = utcnow()
    assert settled_in_a_while(demo) == 1
    assert len(told(demo)) == 1


def test_a_submit_that_was_slow_withdraws_its_dispatch_and_tells_nothing_new(
    demo: Backend, undispatched: Job
) -> None:
    outcomes.cancel(demo, undispatched.tenant_id, undispatched.id)
    assert len(told(demo)) == 1
    submission.ensure_dispatch(demo, undispatched)  # as it was read before the cancel
    dispatch = orders.dispatch_of(demo, undispatched)
    assert dispatch is not None
    assert dispatch.status == "cancelled"
    assert len(told(demo)) == 1


def test_what_ended_long_ago_is_not_told_again_when_its_delivery_is_forgotten(
    demo: Backend, undispatched: Job
) -> None:
    outcomes.cancel(demo, undispatched.tenant_id, undispatched.id)
    with demo.databases.central() as session:
        session.query(WebhookDelivery).delete()
    outcomes.cancel(demo, undispatched.tenant_id, undispatched.id)
    assert told(demo) == []


# Who is told


def test_each_endpoint_hears_what_it_listens_to(
    demo: Backend, ada: Person, person: MakePerson
) -> None:
    both = endpoint(demo, ada, URL, ["job.completed", "job.cancelled"])
    ends = endpoint(demo, ada, URL, ["job.cancelled"])
    endpoint(demo, ada, URL, ["job.failed"])
    off = endpoint(demo, ada, URL)
    endpoint(demo, person(), URL)
    with demo.databases.central() as session:
        session.get_one(WebhookEndpoint, off.id).is_active = False
    completes(demo, orders.order(demo, ada))
    is_cancelled(demo, orders.order(demo, ada))
    heard = sorted((row.endpoint_id, row.event) for row in deliveries_of(demo))
    assert heard == sorted(
        [(both.id, "job.completed"), (both.id, "job.cancelled"), (ends.id, "job.cancelled")]
    )
    cancelled = {row.message_id for row in deliveries_of(demo) if row.event == "job.cancelled"}
    assert len(cancelled) == 1  # the same message, wherever it goes


def test_what_is_told_calls_the_courier(demo: Backend, ada: Person) -> None:
    demo.later.close()
    with Redis.from_url(demo.settings.redis_url) as redis:
        redis.flushdb()
        is_cancelled(demo, orders.order(demo, ada))
        demo.later.close()
        assert redis.llen("control") == 0  # nobody listens
        endpoint(demo, ada, URL)
        is_cancelled(demo, orders.order(demo, ada))
        demo.later.close()
        assert redis.llen("control") >= 1


def test_while_the_broker_is_away_jobs_end_and_are_told(demo: Backend, ada: Person) -> None:
    other = Backend.open(replace(demo.settings, redis_url="redis://127.0.0.1:1/0"))
    endpoint(demo, ada, URL)
    is_cancelled(other, orders.order(other, ada))
    other.close()
    assert len(told(demo)) == 1


def test_removing_an_endpoint_while_jobs_end_disturbs_none(postgres: Backend) -> None:
    """The row is locked by those who tell: a job never fails to end because of a webhook."""
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    for _ in range(8):
        doomed = endpoint(postgres, ada, URL)
        orders.order(postgres, ada)
        worker = gpu.join(postgres)
        lease = gpu.take(postgres, worker)
        start = threading.Barrier(2)

        def remove(doomed: WebhookEndpoint = doomed, start: threading.Barrier = start) -> None:
            start.wait(30)
            with postgres.databases.central() as session:
                webhooks.remove(session, doomed.id)

        with ThreadPoolExecutor(1) as thread:
            removing = thread.submit(remove)
            start.wait(30)
            reports.complete(postgres, worker, lease, outputs=[gpu.IMAGE])
            removing.result(30)
    assert deliveries_of(postgres) == []


def test_an_endpoint_that_is_removed_under_the_hands_of_who_tells_is_waited_for(
    postgres: Backend,
) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    doomed = endpoint(postgres, ada, URL)
    orders.order(postgres, ada)
    worker = gpu.join(postgres)
    lease = gpu.take(postgres, worker)
    with ThreadPoolExecutor(1) as thread:
        with postgres.databases.central() as session:
            webhooks.remove(session, doomed.id)
            reporting = thread.submit(
                reports.complete, postgres, worker, lease, outputs=[gpu.IMAGE]
            )
            waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            while not session.scalar(waits) and not reporting.done():
                pass
        assert reporting.result(30).status == "completed"


def test_many_who_settle_at_once_tell_it_once(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    endpoint(postgres, ada, URL)
    job = orders.order(postgres, ada)
    with postgres.databases.tenant(ada.tenant_id) as session:
        ended = jobs.cancel(session, job.id)
    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(outcomes.settle, postgres, ended)
    assert len(told(postgres)) == 1


def test_a_message_is_told_once_under_its_key(backend: Backend, person: MakePerson) -> None:
    ada = person()
    endpoint(backend, ada, URL)
    message = messages.job_ended(
        job_id=ada.user_id, user_id=ada.user_id, status="failed", error_code="x", at=utcnow()
    )
    for expected in (1, 0):
        with backend.databases.central() as session:
            assert deliveries.tell(session, ada.tenant_id, message) == expected


def test_who_listens_to_nothing_is_not_looked_for(demo: Backend, ada: Person) -> None:
    with demo.databases.central(read_only=True) as session:
        assert webhooks.listening(session, ada.tenant_id, "job.failed") == []
        assert session.scalars(select(WebhookDelivery)).all() == []
