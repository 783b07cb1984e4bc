"""A failed run tells all that is known: findings, faults, trails of jobs, logs, and how to have it
again."""

from pathlib import Path
from random import Random

from models.base import utcnow
from tasks import outcomes
from tasks.backend import Backend
from tests.chaos import faults, report
from tests.chaos.faults import Kind
from tests.chaos.run import Outcome
from tests.chaos.trouble import Done
from tests.chaos.user import Order, User
from tests.chaos.verdict import Finding, Rows
from tests.fixtures import MakePerson
from tests.tasks import orders


def outcome_of(backend: Backend, *findings: Finding) -> Outcome:
    user = User("ada", url="", random=Random(0), files={})
    user.orders = [Order("a", {}, job_ids=["1", "1"]), Order("b", {}, is_refused=True)]
    user.told.update(["POST /api: 201"])
    schedule = list(faults.drawn(7, faults=3))
    done = [Done(fault, utcnow()) for fault in schedule]
    done[2].missed = "it was down"
    return Outcome(
        seed=7,
        wanted=3,
        done=done,
        users=[user],
        findings=list(findings),
        rows=Rows.read(backend),
        seconds={"faults": 12.3},
    )


def test_the_summary_counts(demo: Backend, person: MakePerson) -> None:
    job = orders.order(demo, person(tokens=5))
    outcomes.cancel(demo, job.tenant_id, job.id)
    told = report.summary(outcome_of(demo))
    assert "seed       7" in told
    assert "2: 1 accepted, 1 refused, 0 left without an answer; 1 told again" in told
    assert "POST /api: 201 1" in told
    assert "jobs       1: cancelled 1" in told
    assert "attempts   0: 1" in told
    assert "1 (it was down)" in told
    assert any(f"{kind} " in told for kind in Kind)


def test_a_failure_shows_what_there_is_to_know(
    demo: Backend, person: MakePerson, tmp_path: Path
) -> None:
    job = orders.order(demo, person(tokens=5))
    outcomes.cancel(demo, job.tenant_id, job.id)
    (tmp_path / "web.log").write_text("".join(f"line {number}\n" for number in range(100)))
    outcome = outcome_of(demo, Finding("It is gone.", job.id), Finding("A file is left."))

    told = report.failure(outcome, demo, tmp_path)
    assert f"It is gone. (job {job.id})" in told
    assert "A file is left." in told
    assert all(str(done.fault) in told for done in outcome.done)
    assert "(missed: it was down)" in told
    for table in ("ai_jobs", "token_transactions", "ai_job_dispatches", "worker_audit_logs"):
        assert f"{table}: " in told
    assert "event=job.cancel" in told
    assert "line 99" in told
    assert "line 9\n" not in told
    assert told.endswith("scripts/test chaos --faults 3 --seed 7")
