"""Handing out jobs while something is away, or while the job has ended already."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg2
import pytest
from redis import Redis
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from models import dispatches, effects, jobs, lanes, ledger
from models.audit import AuditLog
from models.base import utcnow
from models.dispatches import Dispatch
from models.errors import DependencyUnavailable, LeaseLost
from models.jobs import Job
from models.workers import Identity
from tasks import outcomes, reports
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person
from tests.tasks import away, gpu, orders


@pytest.fixture
def ada(demo: Backend, person: MakePerson) -> Person:
    return person(tokens=100)


def row(backend: Backend, job: Job) -> Dispatch:
    dispatch = orders.dispatch_of(backend, job)
    assert dispatch is not None
    return dispatch


def events(backend: Backend, job: Job) -> list[str]:
    with backend.databases.central(read_only=True) as session:
        log = select(AuditLog).where(AuditLog.dispatch_id == row(backend, job).id)
        return [entry.event for entry in session.scalars(log.order_by(AuditLog.at, AuditLog.id))]


def poll_with(backend: Backend, worker: Identity, **changed: Any) -> None:
    """Another process, for which something is away."""
    other = Backend.open(replace(backend.settings, **changed))
    try:
        gpu.poll(other, worker)
    finally:
        other.close()


@pytest.fixture
def without_storage(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    return {"storage_url": "s3://bucket", "s3_endpoint_url": "http://127.0.0.1:1"}


def waits_aside(backend: Backend, job: Job) -> None:
    dispatch = row(backend, job)
    assert (dispatch.status, dispatch.attempts) == ("queued", 0)
    assert dispatch.available_at is not None
    assert dispatch.available_at > utcnow()
    assert events(backend, job)[-1] == "job.requeue"


def test_while_the_storage_is_away_no_try_is_used_up(
    demo: Backend, ada: Person, without_storage: dict[str, Any]
) -> None:
    job, worker = orders.order(demo, ada), gpu.join(demo)
    with pytest.raises(DependencyUnavailable):
        poll_with(demo, worker, **without_storage)
    waits_aside(demo, job)
    with demo.databases.tenant(ada.tenant_id) as session:
        assert jobs.get(session, job.id).status == "queued"


def test_while_a_pool_is_away_jobs_of_others_are_not_held_up(demo: Backend, ada: Person) -> None:
    job, worker = orders.order(demo, ada), gpu.join(demo)
    with pytest.raises((SQLAlchemyError, psycopg2.Error, OSError)):
        poll_with(demo, worker, **away.pools(demo, "main", "second"))
    waits_aside(demo, job)
    next_one = orders.order(demo, ada)
    leased = gpu.poll(demo, worker)
    assert leased is not None
    assert leased.dispatch.tenant_job_id == next_one.id
    assert gpu.poll(demo, worker) is None


def test_while_central_is_away_a_job_that_is_put_together_is_not_failed(
    demo: Backend, ada: Person
) -> None:
    job, worker = orders.order(demo, ada), gpu.join(demo)
    other = Backend.open(demo.settings)

    def breaks(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "FROM workflows" in statement:
            raise OperationalError(statement, {}, Exception("server closed the connection"))

    event.listen(other.databases.engine("central"), "before_cursor_execute", breaks)
    with pytest.raises(OperationalError):
        gpu.poll(other, worker)
    other.close()
    waits_aside(demo, job)
    with demo.databases.tenant(ada.tenant_id) as session:
        assert jobs.get(session, job.id).status == "queued"


@pytest.mark.parametrize("broken", [{}, {"media": ["nothing"], "primary": None, "values": {}}])
def test_a_job_with_a_broken_payload_is_failed_and_comes_back_never(
    demo: Backend, ada: Person, broken: dict[str, Any]
) -> None:
    job, worker = orders.order(demo, ada), gpu.join(demo)
    with demo.databases.tenant(ada.tenant_id) as session:
        jobs.get(session, job.id).input_payload = broken
    assert gpu.poll(demo, worker) is None
    with demo.databases.tenant(ada.tenant_id) as session:
        ended = jobs.get(session, job.id)
        assert (ended.status, ended.error_code) == ("failed", "not_runnable")
        assert ledger.balance(session, user_id=ada.user_id) == 100
    assert row(demo, job).status == "failed"
    assert events(demo, job) == ["job.lease", "job.fail"]


def test_a_dispatch_whose_job_is_gone_is_ended(demo: Backend, ada: Person) -> None:
    job, worker = orders.order(demo, ada), gpu.join(demo)
    with demo.databases.central() as session:
        session.get_one(Dispatch, row(demo, job).id).tenant_job_id = gone = uuid4()
    next_one = orders.order(demo, ada)
    leased = gpu.poll(demo, worker)
    assert leased is not None
    assert leased.dispatch.tenant_job_id == next_one.id
    with demo.databases.central(read_only=True) as session:
        orphan = dispatches.find_by_job(session, ada.tenant_id, gone)
        assert orphan is not None
        assert orphan.status == "failed"
        log = session.scalars(select(AuditLog).where(AuditLog.dispatch_id == orphan.id))
        assert [entry.event for entry in log] == ["job.lease", "job.fail"]


def test_a_job_that_waits_aside_is_rung_for_and_served_when_its_time_comes(
    demo: Backend, ada: Person, without_storage: dict[str, Any]
) -> None:
    job, worker = orders.order(demo, ada), gpu.join(demo)
    with pytest.raises(DependencyUnavailable):
        poll_with(demo, worker, **without_storage)
    demo.later.close()
    with Redis.from_url(demo.settings.redis_url) as redis:
        assert redis.llen(gpu.FLEET) == 1  # only the order's own: nobody is sent in vain
    later = utcnow() + timedelta(seconds=demo.settings.retry_seconds)
    fleet_id = row(demo, job).fleet_id
    with demo.databases.central(read_only=True) as session:
        assert lanes.waiting(session, fleet_id=fleet_id, limit=9) == []
        assert lanes.waiting(session, fleet_id=fleet_id, limit=9, now=later) == [row(demo, job).id]
    again = orders.lease_next(demo, now=later)
    assert again is not None
    assert (again.tenant_job_id, again.attempts, again.available_at) == (job.id, 1, None)


GIVING_BACK: dict[str, Callable[[Backend, Identity, Any], object]] = {
    "requeue": lambda backend, _, lease: outcomes.requeue(backend, lease, reason="spot").status,
    "retry": lambda backend, worker, lease: reports.fail(
        backend, worker, lease, error="x", retryable=True
    ),
}


@pytest.mark.parametrize("report", GIVING_BACK)
@pytest.mark.parametrize("end", ["completed", "cancelled", "failed"])
def test_a_job_that_has_ended_is_not_queued_again(
    demo: Backend, ada: Person, report: str, end: str
) -> None:
    """The process died after the money moved; then the worker gave the job back."""
    job, worker = orders.order(demo, ada), gpu.join(demo)
    lease = gpu.take(demo, worker)
    with demo.databases.tenant(ada.tenant_id) as session:
        match end:
            case "completed":
                jobs.complete(session, job.id, outputs=[])
            case "cancelled":
                jobs.cancel(session, job.id)
            case _:
                jobs.fail(session, job.id, code="x", message="Broke.")
    for _ in range(2):
        assert GIVING_BACK[report](demo, worker, lease) == end
    assert row(demo, job).status == end
    ending = {"completed": "job.complete", "cancelled": "job.cancel", "failed": "job.fail"}[end]
    assert events(demo, job) == ["job.lease", ending]
    assert gpu.poll(demo, worker) is None


@pytest.mark.parametrize("report", GIVING_BACK)
def test_a_repeated_report_is_noted_once(demo: Backend, ada: Person, report: str) -> None:
    job, worker = orders.order(demo, ada), gpu.join(demo)
    lease = gpu.take(demo, worker)
    for _ in range(3):
        assert GIVING_BACK[report](demo, worker, lease) == "queued"
    assert events(demo, job) == ["job.lease", f"job.{report}"]


def test_a_retry_after_a_cancel_changes_nothing(demo: Backend, ada: Person) -> None:
    job, worker = orders.order(demo, ada), gpu.join(demo)
    lease = gpu.take(demo, worker)
    outcomes.cancel(demo, ada.tenant_id, job.id)
    assert reports.fail(demo, worker, lease, error="x", retryable=True) == "cancelled"
    assert row(demo, job).status == "cancelled"
    assert events(demo, job) == ["job.lease", "job.cancel"]


def test_the_time_a_job_took_is_that_of_its_last_try(demo: Backend, ada: Person) -> None:
    """A worker that was lost, and the wait for the next one, tell nothing about the effect."""
    job, worker = orders.order(demo, ada), gpu.join(demo)
    gpu.take(demo, worker)
    with demo.databases.tenant(ada.tenant_id) as session:
        jobs.get(session, job.id).started_at = utcnow() - timedelta(hours=5)
    with demo.databases.central() as session:
        session.get_one(Dispatch, row(demo, job).id).lease_expires_at = utcnow()
    reports.complete(demo, worker, gpu.take(demo, worker), outputs=[gpu.IMAGE])
    with demo.databases.central(read_only=True) as session:
        seconds = effects.get(session, orders.EFFECT).last_processing_time_seconds
    assert seconds is not None
    assert seconds < 3600


def test_a_job_whose_answer_got_lost_comes_again_with_the_next_poll(
    demo: Backend, ada: Person
) -> None:
    job, _ = orders.order(demo, ada), orders.order(demo, ada)
    other, worker = gpu.join(demo), gpu.join(demo)
    lost = gpu.take(demo, worker)
    kept = gpu.take(demo, other)
    again = gpu.poll(demo, worker, holds_nothing=True)
    assert again is not None
    assert (again.dispatch.id, again.dispatch.attempts) == (lost.dispatch_id, 1)
    assert again.dispatch.lease_token != lost.token
    assert events(demo, job) == ["job.lease", "job.requeue", "job.lease"]
    with pytest.raises(LeaseLost):
        outcomes.check(demo, lost)
    outcomes.check(demo, kept)  # nobody else's is touched
