"""How jobs end: money and state together, once, whatever is repeated."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from models import effects, files, jobs, ledger, ledger_audit, videos
from models.audit import AuditLog
from models.base import utcnow
from models.errors import AlreadyRefunded, LeaseLost
from models.jobs import Job, JobStatus
from tasks import money, outcomes, reconcile, submission, sweepers
from tasks.backend import Backend
from tasks.outcomes import Output
from tests.fixtures import MakePerson, Person
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

    assert reconcile.each([0, 1, 2], step) == 2
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
    video_id = add_video(demo, ada)
    older, newer = (order_for(demo, ada, video_id) for _ in range(2))
    older_lease, newer_lease = held(demo), held(demo)
    outcomes.complete(demo, newer_lease, outputs=[RESULT])
    outcomes.fail(demo, older_lease, code="x", message="Broke.", error="x")
    assert (stored(demo, older).status, stored(demo, newer).status) == ("failed", "completed")
    with demo.databases.tenant(ada.tenant_id) as session:
        assert videos.get(session, video_id, user_id=ada.user_id).status == "completed"


def add_video(backend: Backend, person: Person) -> UUID:
    with backend.databases.tenant(person.tenant_id) as session:
        file = files.store_output(
            session,
            user_id=person.user_id,
            filename="in.png",
            kind="image",
            mime_type="image/png",
            size_bytes=1,
            object_key=f"tenants/t/files/{uuid4()}.png",
            content_hash="0" * 64,
        )
        session.flush()
        return videos.create(session, user_id=person.user_id, file=file, title="In").id


def order_for(backend: Backend, person: Person, video_id: UUID) -> Job:
    request = replace(orders.request(person, effect="image-invert"), video_id=video_id)
    return submission.submit(backend, request).job
