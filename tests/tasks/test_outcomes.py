"""How jobs end: money and state together, once, whatever is repeated."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from redis import Redis

from models import effects, jobs, ledger, ledger_audit, videos
from models.audit import AuditLog
from models.base import utcnow
from models.errors import AlreadyRefunded, InvalidInput, LeaseLost, NotFound, VideoInUse
from models.files import Output
from models.jobs import Job, JobStatus
from tasks import catalog, money, outcomes, reconcile, steps, submission, sweepers
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person, make_person
from tests.tasks import orders

RESULT = Output(
    name="out.png",
    kind="image",
    mime_type="image/png",
    size_bytes=5,
    object_key="tenants/t/ai-jobs/j/output-1.png",
    content_hash="0" * 64,
)


@pytest.fixture
def ada(demo: Backend, person: MakePerson) -> Person:
    return person(tokens=100)


def balance(backend: Backend, person: Person) -> int:
    with backend.databases.tenant(person.tenant_id) as session:
        return ledger.balance(session, user_id=person.user_id)


def stored(backend: Backend, job: Job) -> Job:
    with backend.databases.tenant(job.tenant_id) as session:
        return jobs.get(session, job.id)


def held(backend: Backend) -> outcomes.Lease:
    dispatch = orders.lease_next(backend)
    assert dispatch is not None
    with backend.databases.tenant(dispatch.tenant_id) as session:
        jobs.start(session, dispatch.tenant_job_id)
    return orders.lease_of(dispatch)


def test_completing_keeps_the_price_and_stores_the_result(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    lease = held(demo)
    assert stored(demo, job).status == JobStatus.PROCESSING
    for _ in range(2):
        done = outcomes.complete(demo, lease, outputs=[RESULT], provider_job_id="p-1")
        assert done.status == JobStatus.COMPLETED
    done = stored(demo, job)
    assert [output.file.filename for output in done.outputs] == ["out.png"]
    assert done.provider_job_id == "p-1"
    assert balance(demo, ada) == 100 - job.price_tokens
    dispatch = orders.dispatch_of(demo, job)
    assert dispatch is not None
    assert dispatch.status == "completed"
    with demo.databases.central(read_only=True) as session:
        effect = effects.get(session, orders.EFFECT)
        assert effect.last_processing_time_seconds is not None


def test_failing_gives_the_price_back_once(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    lease = held(demo)
    for _ in range(2):
        outcomes.fail(demo, lease, code="node_error", message="Too dark.", error="Traceback …")
    done = stored(demo, job)
    assert (done.status, done.error_message) == (JobStatus.FAILED, "Too dark.")
    assert balance(demo, ada) == 100
    dispatch = orders.dispatch_of(demo, job)
    assert dispatch is not None
    assert (dispatch.status, dispatch.last_error) == ("failed", "Traceback …")


def test_a_requeued_job_waits_again_and_may_complete(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    first = held(demo)
    for _ in range(2):
        outcomes.requeue(demo, first, reason="spot")
    assert stored(demo, job).status == JobStatus.QUEUED
    with pytest.raises(LeaseLost):
        outcomes.complete(demo, first, outputs=[RESULT])
    outcomes.complete(demo, held(demo), outputs=[RESULT])
    assert stored(demo, job).status == JobStatus.COMPLETED


def test_cancelling_refunds_once_and_stops_the_worker(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    lease = held(demo)
    for _ in range(2):
        assert outcomes.cancel(demo, ada.tenant_id, job.id).status == JobStatus.CANCELLED
    assert balance(demo, ada) == 100
    late = outcomes.complete(demo, lease, outputs=[RESULT])
    assert (late.status, late.outputs) == (JobStatus.CANCELLED, [])
    assert balance(demo, ada) == 100


def test_a_silent_worker_costs_an_attempt_and_the_last_one_the_job(
    demo: Backend, ada: Person
) -> None:
    job = orders.order(demo, ada)
    now = utcnow()
    for attempt in range(1, 4):
        dispatch = orders.lease_next(demo, now=now)
        assert dispatch is not None
        assert dispatch.attempts == attempt
        now += timedelta(seconds=181)
        done = reconcile.run_once(demo, now=now)
        assert (done.leases_taken_back, done.given_up) == ((1, 0) if attempt < 3 else (0, 1))
    failed = stored(demo, job)
    assert (failed.status, failed.error_code) == (JobStatus.FAILED, "attempts_exhausted")
    assert balance(demo, ada) == 100


def test_a_report_that_stopped_between_the_databases_is_finished(
    demo: Backend, ada: Person
) -> None:
    """The money moved, the process died; the lease runs out and the dispatch follows."""
    job = orders.order(demo, ada)
    held(demo)
    with demo.databases.tenant(ada.tenant_id) as session:
        jobs.complete(session, job.id, outputs=[])
    reconcile.run_once(demo, now=utcnow() + timedelta(seconds=181))
    dispatch = orders.dispatch_of(demo, job)
    assert dispatch is not None
    assert dispatch.status == "completed"
    assert balance(demo, ada) == 100 - job.price_tokens


def test_one_bad_item_does_not_stop_a_sweep(
    demo: Backend, ada: Person, caplog: pytest.LogCaptureFixture
) -> None:
    def step(number: int) -> bool:
        if number == 1:
            raise RuntimeError("a bad one")
        return True

    assert steps.each([0, 1, 2], step) == 2
    assert "a bad one" in caplog.text


def test_a_manual_refund_of_a_completed_job_is_a_credit_once(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    outcomes.complete(demo, held(demo), outputs=[RESULT])
    money.refund(demo, job_id=job.id, note="Blurry.", actor="user:boss")
    assert balance(demo, ada) == 100
    with pytest.raises(AlreadyRefunded):
        money.refund(demo, job_id=job.id, note="Again.", actor="user:boss")
    assert balance(demo, ada) == 100
    with demo.databases.central(read_only=True) as session:
        log = session.query(AuditLog).filter_by(event="job.refund").order_by(AuditLog.at).all()
        assert [(row.actor, row.details["repeated"]) for row in log] == [
            ("user:boss", False),
            ("user:boss", True),
        ]
    with demo.databases.pool("main") as session:
        assert list(ledger_audit.disagreements(session)) == []


def test_a_manual_refund_of_a_waiting_job_cancels_it(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    assert money.refund(demo, job_id=job.id, note="Stuck.", actor="cli").status == "cancelled"
    dispatch = orders.dispatch_of(demo, job)
    assert dispatch is not None
    assert dispatch.status == "cancelled"
    assert balance(demo, ada) == 100


def test_sweeping_nothing_is_nothing(demo: Backend) -> None:
    assert sweepers.run_once(demo) == sweepers.Swept(0, 0)


def test_a_video_follows_its_newest_job(demo: Backend, ada: Person) -> None:
    """An older job that fails late does not spoil what the newer one made."""
    video_id = orders.add_video(demo, ada)
    older, newer = (order_for(demo, ada, video_id) for _ in range(2))
    older_lease, newer_lease = held(demo), held(demo)
    outcomes.complete(demo, newer_lease, outputs=[RESULT])
    outcomes.fail(demo, older_lease, code="x", message="Broke.", error="x")
    assert (stored(demo, older).status, stored(demo, newer).status) == ("failed", "completed")
    with demo.databases.tenant(ada.tenant_id) as session:
        assert videos.get(session, video_id, user_id=ada.user_id).status == "completed"


def order_for(backend: Backend, person: Person, video_id: UUID) -> Job:
    request = replace(orders.request(person, effect="image-invert"), video_id=video_id)
    return submission.submit(backend, request).job


def test_a_video_is_kept_while_any_job_needs_it(demo: Backend, ada: Person) -> None:
    video_id = orders.add_video(demo, ada)
    older, newer = (order_for(demo, ada, video_id) for _ in range(2))
    outcomes.cancel(demo, ada.tenant_id, newer.id)
    with pytest.raises(VideoInUse), demo.databases.tenant(ada.tenant_id) as session:
        jobs.remove_video(session, video_id, user_id=ada.user_id)
    outcomes.cancel(demo, ada.tenant_id, older.id)
    with demo.databases.tenant(ada.tenant_id) as session:
        assert len(jobs.remove_video(session, video_id, user_id=ada.user_id)) == 1


def test_a_file_that_a_job_takes_as_an_input_is_kept(demo: Backend, ada: Person) -> None:
    video_id = orders.add_video(demo, ada)
    with demo.databases.tenant(ada.tenant_id) as session:
        file_id = videos.get(session, video_id, user_id=ada.user_id).original_file_id
    orders.order(demo, ada, effect="image-invert", image=str(file_id))
    with pytest.raises(VideoInUse), demo.databases.tenant(ada.tenant_id) as session:
        jobs.remove_video(session, video_id, user_id=ada.user_id)


def test_an_order_and_a_delete_of_its_video_do_not_both_succeed(postgres: Backend) -> None:
    """The delete holds its locks while the order arrives: the order finds no video."""
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    video_id = orders.add_video(postgres, ada)
    with ThreadPoolExecutor(1) as thread:
        with postgres.databases.tenant(ada.tenant_id) as session:
            jobs.remove_video(session, video_id, user_id=ada.user_id)
            ordering = thread.submit(order_for, postgres, ada, video_id)
            time.sleep(0.3)  # long enough to reach the lock; correct however long
        with pytest.raises(NotFound):
            ordering.result(timeout=30)
    assert balance(postgres, ada) == 100


def test_the_same_report_twice_at_once_is_one_result(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    job = orders.order(postgres, ada)
    lease = held(postgres)
    with ThreadPoolExecutor(4) as threads:
        reports = [
            threads.submit(outcomes.complete, postgres, lease, outputs=[RESULT]) for _ in range(4)
        ]
        assert {report.result(timeout=30).status for report in reports} == {"completed"}
    assert len(stored(postgres, job).outputs) == 1


def test_whoever_gives_a_job_back_rings_for_it(demo: Backend, ada: Person) -> None:
    orders.order(demo, ada)
    outcomes.requeue(demo, held(demo), reason="spot")
    held(demo)
    reconcile.run_once(demo, now=utcnow() + timedelta(seconds=181))
    demo.later.close()
    with Redis.from_url(demo.settings.redis_url) as redis:
        assert redis.llen("gpu-default") == 3  # ordered, given back, taken back


def test_lost_tickets_are_rung_again(demo: Backend, ada: Person) -> None:
    for _ in range(3):
        orders.order(demo, ada)
    demo.later.close()
    with Redis.from_url(demo.settings.redis_url) as redis:
        redis.flushdb()
        for expected in (3, 0):
            assert reconcile.run_once(demo).tickets_rung == expected
            demo.later.close()
            assert redis.llen("gpu-default") == 3


def test_the_name_of_a_refund_cannot_be_taken_by_a_payment(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    with pytest.raises(InvalidInput):
        money.credit(
            demo,
            user_id=ada.user_id,
            amount=job.price_tokens,
            provider_transaction_id=f"refund:{job.id}",
            note=None,
            actor="cli",
        )
