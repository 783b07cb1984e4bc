"""Which jobs become dead letters, and what is written on them."""

from datetime import timedelta
from typing import Any

import pytest

from models import dead_letters, jobs
from models.base import utcnow
from models.dead_letters import DeadLetterReason, DeadLetterStatus
from tasks import catalog, outcomes, reconcile, reports
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person, make_person
from tests.tasks import gpu, letters, orders


@pytest.fixture
def ada(demo: Backend, person: MakePerson) -> Person:
    return person(tokens=100)


def fail_for_now(backend: Backend, error: str, **given: Any) -> None:
    """A worker takes what waits, and gives it back as not to blame."""
    worker = gpu.join(backend)
    lease = gpu.take(backend, worker)
    reports.fail(backend, worker, lease, error=error, retryable=True, **given)


def test_a_job_whose_workers_all_went_silent_is_kept(demo: Backend, ada: Person) -> None:
    job = letters.given_up(demo, ada)
    letter = letters.kept(demo, job)
    assert (letter.status, letter.reason) == (DeadLetterStatus.OPEN, "attempts_exhausted")
    assert letter.error == "The worker went silent."
    assert letter.trace is None
    assert (letter.resolved_at, letter.resolved_by, letter.redriven_job_id) == (None, None, None)


def test_a_job_that_went_wrong_on_every_try_is_kept_with_its_story(
    demo: Backend, ada: Person
) -> None:
    job = orders.order(demo, ada)
    fail_for_now(demo, "ComfyUI is away.")
    fail_for_now(demo, "ComfyUI is still away.")
    with demo.databases.central() as session:  # its back-off is over
        session.get_one(
            dead_letters.Dispatch, letters.dispatch_of(demo, job).id
        ).available_at = None
    fail_for_now(demo, "Out of memory.", trace="File sampler.py, line 1", code="oom")
    letter = letters.kept(demo, job)
    assert (letter.reason, letter.error) == ("attempts_exhausted", "Out of memory.")
    assert letter.trace == "File sampler.py, line 1"
    assert letters.dispatch_of(demo, job).last_error == "Out of memory.\nFile sampler.py, line 1"
    told = [(one["attempt"], one["ending"], one["error"]) for one in letter.history]
    assert told == [
        (1, "retry", "ComfyUI is away."),
        (2, "retry", "ComfyUI is still away."),
        (3, "fail", "Out of memory.\nFile sampler.py, line 1"),
    ]
    assert len({one["worker_id"] for one in letter.history}) == 3
    assert all(one["began_at"] <= one["ended_at"] for one in letter.history)


def test_what_a_worker_lost_on_the_way_is_in_the_story(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    worker = gpu.join(demo)
    outcomes.requeue(demo, gpu.take(demo, worker), reason="spot", actor=worker.actor)
    for _ in range(3):
        gpu.take(demo, gpu.join(demo))
        letters.let_leases_run_out(demo)
        reconcile.run_once(demo)
    history = letters.kept(demo, job).history
    assert [(one["attempt"], one["ending"]) for one in history] == [
        (1, "requeue"),
        (1, "silent"),
        (2, "silent"),
        (3, "silent"),
    ]
    assert [one["error"] for one in history] == ["spot"] + ["The worker went silent."] * 3
    assert all(one["ended_at"] for one in history)


def test_a_job_that_a_provider_lost_is_kept(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    worker = gpu.join(demo)
    lost = str(DeadLetterReason.PROVIDER_LOST)
    reports.fail(demo, worker, gpu.take(demo, worker), error="404", code=lost)
    assert letters.kept(demo, job).reason == "provider_lost"


@pytest.mark.parametrize("code", [None, "execution_failed", "no_output", "input_too_large"])
def test_a_job_that_failed_by_its_own_fault_is_not_kept(
    demo: Backend, ada: Person, code: str | None
) -> None:
    job = orders.order(demo, ada)
    worker = gpu.join(demo)
    reports.fail(demo, worker, gpu.take(demo, worker), error="Too dark.", code=code)
    assert letters.letter_of(demo, job) is None


def test_a_fault_of_its_own_on_the_last_try_is_not_kept_either(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    fail_for_now(demo, "x")
    fail_for_now(demo, "x")
    with demo.databases.central() as session:
        session.get_one(
            dead_letters.Dispatch, letters.dispatch_of(demo, job).id
        ).available_at = None
    worker = gpu.join(demo)
    reports.fail(demo, worker, gpu.take(demo, worker), error="Too dark.")
    assert letters.letter_of(demo, job) is None


def test_what_completed_or_was_cancelled_is_not_kept(demo: Backend, ada: Person) -> None:
    done, unwanted = orders.order(demo, ada), orders.order(demo, ada)
    worker = gpu.join(demo)
    reports.complete(demo, worker, gpu.take(demo, worker), outputs=[gpu.IMAGE])
    outcomes.cancel(demo, ada.tenant_id, unwanted.id)
    assert [letters.letter_of(demo, job) for job in (done, unwanted)] == [None, None]


def test_a_report_that_is_repeated_keeps_one_letter(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    worker = gpu.join(demo)
    lease = gpu.take(demo, worker)
    for _ in range(3):
        reports.fail(demo, worker, lease, error="404", code="provider_lost")
    reconcile.run_once(demo, now=utcnow() + timedelta(seconds=181))
    assert letters.kept(demo, job).error == "404"


def test_a_report_that_stopped_between_the_databases_keeps_its_letter(
    demo: Backend, ada: Person
) -> None:
    """The money went back, the process died: whoever settles the dispatch writes the letter."""
    job = orders.order(demo, ada)
    gpu.take(demo, gpu.join(demo))
    with demo.databases.tenant(ada.tenant_id) as session:
        jobs.fail(session, job.id, code="attempts_exhausted", message="It could not be finished.")
    assert letters.letter_of(demo, job) is None
    reconcile.run_once(demo, now=utcnow() + timedelta(seconds=181))
    letter = letters.kept(demo, job)
    assert (letter.reason, letter.error) == ("attempts_exhausted", "It could not be finished.")


def test_an_endless_error_is_kept_as_far_as_errors_are(demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    worker = gpu.join(demo)
    reports.fail(
        demo, worker, gpu.take(demo, worker), error="e" * 30_000, trace="t" * 30_000,
        code="provider_lost",
    )  # fmt: skip
    letter = letters.kept(demo, job)
    assert letter.error == "e" * 20_000
    assert letter.trace == "t" * 20_000
    assert letter.history[0]["error"] == "e" * 2000


def test_a_job_that_was_given_back_ever_so_often_has_a_story_with_an_end(
    demo: Backend, ada: Person
) -> None:
    job = orders.order(demo, ada)
    worker = gpu.join(demo)
    for _ in range(130):
        outcomes.requeue(demo, gpu.take(demo, worker), reason="spot", actor=worker.actor)
    reports.fail(demo, worker, gpu.take(demo, worker), error="404", code="provider_lost")
    history = letters.kept(demo, job).history
    assert len(history) == 100  # the newest
    assert (history[-1]["ending"], history[-1]["error"]) == ("fail", "404")


def test_open_letters_are_counted_by_the_fleet_of_their_jobs(demo: Backend, ada: Person) -> None:
    with demo.databases.central(read_only=True) as session:
        assert dead_letters.open_by_fleet(session) == {}
    found = [letters.kept(demo, letters.given_up(demo, ada)) for _ in range(3)]
    with demo.databases.central() as session:
        dead_letters.discard(session, found[0].id, actor="cli")
    fleet_id = letters.dispatch_of(demo, letters.every_job(demo, ada)[0]).fleet_id
    with demo.databases.central(read_only=True) as session:
        assert dead_letters.open_by_fleet(session) == {fleet_id: 2}


def test_giving_up_twice_at_once_writes_one_letter(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    job = orders.order(postgres, ada)
    now = utcnow()
    while orders.lease_next(postgres, now=now):
        now += timedelta(seconds=181)
    dispatch_id = letters.dispatch_of(postgres, job).id
    letters.at_once(4, lambda: outcomes.give_up(postgres, dispatch_id, now=now))
    letters.kept(postgres, job)
    assert len(letters.audited(postgres, "job.fail")) == 1
