"""Worlds in which one thing is wrong: the verdict says so, and of one in order it says nothing."""

from pathlib import Path
from random import Random

import pytest
from sqlalchemy import update

from models.dispatches import DispatchStatus
from models.files import Output
from models.jobs import Job
from models.ledger import Wallet
from tasks import outcomes
from tasks.backend import Backend
from tests.chaos import verdict
from tests.chaos.user import Order, User
from tests.chaos.verdict import Rows
from tests.fixtures import MakePerson
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
def user(demo: Backend, person: MakePerson) -> User:
    """Four orders: one done, one that went wrong, one cancelled, one refused."""
    ada, user = person(tokens=100), User("ada", url="", random=Random(0), files={})
    for key in ("done", "wrong", "cancelled"):
        effect = "always-fails" if key == "wrong" else orders.EFFECT
        job = orders.order(demo, ada, key=key, effect=effect)
        end(demo, job, key)
        user.orders.append(Order(key, {}, job_ids=[str(job.id), str(job.id)]))
    user.ends = {user.orders[0].job_ids[0]: "completed"}
    user.orders.append(Order("too much", {}, is_refused=True))
    return user


def end(backend: Backend, job: Job, how: str) -> None:
    if how == "cancelled":
        outcomes.cancel(backend, job.tenant_id, job.id)
        return
    dispatch = orders.lease_next(backend)
    assert dispatch is not None
    if how == "done":
        outcomes.complete(backend, orders.lease_of(dispatch), outputs=[RESULT])
    else:
        lease = orders.lease_of(dispatch)
        outcomes.fail(backend, lease, code="execution_failed", message="Broke.", error="Broke.")


@pytest.fixture
def rows(demo: Backend, user: User) -> Rows:
    return Rows.read(demo)


def said(rows: Rows, user: User) -> list[str]:
    checks = [
        *verdict.unrest(rows),
        *verdict.about_bookings(rows),
        *verdict.about_dispatches(rows),
        *verdict.about_results(rows),
        *verdict.about_failures(rows),
        *verdict.about_promises(rows, [user]),
    ]
    return [str(finding) for finding in checks]


def job_of(rows: Rows, key: str) -> Job:
    return next(job for job in rows.jobs.values() if job.idempotency_key == key)


def test_of_a_world_in_order_nothing_is_said(demo: Backend, rows: Rows, user: User) -> None:
    assert len(rows.jobs) == 3
    assert said(rows, user) == []
    assert list(verdict.about_ledger(demo)) == []


def test_a_job_that_was_charged_twice(rows: Rows, user: User) -> None:
    job = job_of(rows, "done")
    rows.booked[job.id]["JOB_RESERVE"] += 1
    told = "It is completed, and was booked JOB_CONSUME 1, JOB_RESERVE 2."
    assert said(rows, user) == [f"{told} (job {job.id})"]


def test_a_job_that_was_refunded_twice_and_one_that_was_never(rows: Rows, user: User) -> None:
    rows.booked[job_of(rows, "wrong").id]["JOB_REFUND"] += 1
    del rows.booked[job_of(rows, "cancelled").id]["JOB_REFUND"]
    twice, never = said(rows, user)
    assert "It is failed, and was booked JOB_REFUND 2, JOB_RESERVE 1." in twice
    assert "It is cancelled, and was booked JOB_RESERVE 1." in never


def test_a_result_that_nobody_paid_for(rows: Rows, user: User) -> None:
    rows.booked.clear()
    assert len([one for one in said(rows, user) if "was booked nothing" in one]) == 3


def test_a_wallet_that_does_not_add_up(demo: Backend, rows: Rows) -> None:
    with demo.databases.pool("main") as session:
        session.execute(update(Wallet).values(balance=Wallet.balance + 1))
    [finding] = verdict.about_ledger(demo)
    assert "The balance is 100, its transactions add up to 99." in finding.sentence


def test_a_lost_job(rows: Rows, user: User) -> None:
    job = rows.jobs.pop(job_of(rows, "done").id)
    del rows.booked[job.id], rows.dispatches[job.id]
    assert said(rows, user) == [f"Was accepted as done, and is lost. (job {job.id})"]


def test_a_job_that_is_gone_but_for_its_money_and_its_dispatch(rows: Rows, user: User) -> None:
    job = rows.jobs.pop(job_of(rows, "wrong").id)
    user.orders.clear()
    assert said(rows, user) == [
        f"Was paid for, and does not exist. (job {job.id})",
        f"Has a dispatch, and does not exist. (job {job.id})",
    ]


def test_a_job_that_never_ended(demo: Backend, person: MakePerson, user: User) -> None:
    job = orders.order(demo, person(tokens=5))
    with demo.databases.tenant(job.tenant_id) as session:
        session.execute(update(Job).where(Job.id == job.id).values(status="processing"))
    assert said(Rows.read(demo), user)[:2] == [
        f"Has not ended: it is processing. (job {job.id})",
        f"Its dispatch is queued. (job {job.id})",
    ]


def test_a_dispatch_that_ended_otherwise_than_its_job(rows: Rows, user: User) -> None:
    job = job_of(rows, "done")
    rows.dispatches[job.id][0].status = DispatchStatus.FAILED
    [finding] = said(rows, user)
    assert "It is completed, its dispatches are" in finding


def test_a_job_with_two_dispatches_and_one_with_none(rows: Rows, user: User) -> None:
    rows.dispatches[job_of(rows, "wrong").id] *= 2
    del rows.dispatches[job_of(rows, "done").id]
    found = said(rows, user)
    assert len(found) == 2
    assert all("its dispatches are" in one for one in found)


def test_a_job_that_failed_before_it_was_queued_has_no_dispatch(rows: Rows, user: User) -> None:
    del rows.dispatches[job_of(rows, "wrong").id]
    assert said(rows, user) == []


def test_a_job_that_completed_without_a_result(rows: Rows, user: User) -> None:
    job = job_of(rows, "done")
    job.outputs.clear()
    assert said(rows, user) == [f"Completed, and has no result. (job {job.id})"]


def test_a_job_that_was_blamed_for_what_was_done_to_the_system(rows: Rows, user: User) -> None:
    job = job_of(rows, "wrong")
    job.error_code = "input_gone"
    assert said(rows, user) == [f"always-fails failed with input_gone. (job {job.id})"]
    job.error_code, job.effect_slug = "execution_failed", "colour-card"
    assert said(rows, user) == [f"colour-card failed with execution_failed. (job {job.id})"]
    job.error_code = "attempts_exhausted"
    assert said(rows, user) == []


def test_a_log_that_tells_of_what_nobody_thought_of(tmp_path: Path) -> None:
    (tmp_path / "gpu-1.log").write_text("a\nJob 1 went wrong in the worker.\nb\n")
    (tmp_path / "web.log").write_text("A database does not answer.\n")
    [finding] = verdict.about_logs(tmp_path)
    assert finding.sentence == "The log of gpu-1 says: Job 1 went wrong in the worker."


def test_a_key_that_gave_two_jobs(rows: Rows, user: User) -> None:
    user.orders[0].job_ids += user.orders[1].job_ids
    other, several = said(rows, user)
    assert "Was told for done, and is another order." in other
    assert "The key done gave 2 jobs." in several


def test_an_end_that_was_told_and_then_another(rows: Rows, user: User) -> None:
    user.ends = {user.orders[0].job_ids[0]: "cancelled"}
    [finding] = said(rows, user)
    assert "ada was told cancelled, it is completed." in finding


def test_a_refused_order_that_was_taken_all_the_same(rows: Rows, user: User) -> None:
    user.orders.append(Order("done", {}, is_refused=True))
    assert said(rows, user) == ["The order done was refused, and there is a job."]


def test_an_order_that_got_no_answer_and_one_that_nobody_waits_for(rows: Rows, user: User) -> None:
    user.orders += [Order("x", {}), Order("y", {}, is_forgotten=True)]
    assert said(rows, user) == ["The order x got no answer."]


def test_answers_that_nobody_may_get(rows: Rows, user: User) -> None:
    user.surprises.append("GET /api answered 500.")
    user.broke_off = KeyError("id")
    assert said(rows, user) == ["ada broke off: KeyError('id').", "ada: GET /api answered 500."]
