"""`comfyfleet jobs`, `queue`, `dead-letters`, `audit` and `wallet show`, as a person runs them."""

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from models.dead_letters import DeadLetter
from models.effects import Effect
from models.fleets import Fleet
from models.jobs import Job
from tasks import catalog, money, outcomes, reports
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person, make_person
from tests.scripts.test_cli import Run, runner
from tests.tasks import away, gpu, letters, orders


@pytest.fixture
def run(demo: Backend) -> Run:
    """Runs a command against databases with the demo catalog, on both kinds."""
    return runner(demo.settings)


@pytest.fixture
def ada(demo: Backend, person: MakePerson) -> Person:
    return person(tokens=100)


def said(run: Run, *arguments: str, **given: Any) -> Any:
    return json.loads(run(*arguments, "--json", **given).stdout)


def lost(backend: Backend, person: Person) -> Job:
    """A job of which a provider knows nothing any more."""
    job = orders.order(backend, person)
    worker = gpu.join(backend)
    reports.fail(
        backend,
        worker,
        gpu.take(backend, worker),
        error="Gone.\nNo such run.",
        trace="Traceback: line 7",
        code="provider_lost",
    )
    return job


# Jobs


def test_jobs_are_listed_and_filtered(
    run: Run, demo: Backend, ada: Person, person: MakePerson
) -> None:
    bob = person(tokens=9)
    first, second = orders.order(demo, ada), orders.order(demo, bob)
    table = run("jobs", "list").stdout.splitlines()
    assert table[0].split()[:4] == ["job", "status", "fleet", "workflow"]
    assert [line.split()[0] for line in table[1:]] == [str(second.id), str(first.id)]
    assert "0/3" in table[1]
    [only] = said(run, "jobs", "list", "--user", bob.email.upper())
    assert (only["job_id"], only["status"]) == (str(second.id), "queued")
    assert said(run, "jobs", "list", "--status", "failed") == []
    assert len(said(run, "jobs", "list", "--fleet", "gpu-default")) == 2
    assert len(said(run, "jobs", "list", "--limit", "1")) == 1
    assert run("jobs", "list", "--fleet", "nowhere").stdout == "Nothing to show.\n"
    done = run("jobs", "list", "--user", "nobody@example.com", exit_code=2)
    assert done.stderr == "not_found: Nobody is registered as nobody@example.com.\n"


def test_a_job_is_shown_with_its_story_by_either_of_its_ids(
    run: Run, demo: Backend, ada: Person
) -> None:
    job = lost(demo, ada)
    dispatch = letters.dispatch_of(demo, job)
    by_job, by_dispatch = (said(run, "jobs", "show", str(i)) for i in (job.id, dispatch.id))
    assert by_job == by_dispatch
    assert by_job["job"]["error_code"] == "provider_lost"
    assert [row["event"] for row in by_job["timeline"]] == ["job.lease", "job.fail"]
    told = run("jobs", "show", str(job.id)).stdout
    assert f"job_id            {job.id}" in told
    assert "job price_tokens  1" in told
    assert "job.fail" in told
    assert run("jobs", "show", str(uuid4()), exit_code=2).stderr.startswith("not_found:")


def test_a_job_is_cancelled_from_a_terminal(run: Run, demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    for _ in range(2):
        told = run("jobs", "cancel", str(job.id)).stdout
        assert told == f"The job {job.id} is cancelled.\n"
    assert letters.balance(demo, ada) == 100
    assert [row.actor for row in letters.audited(demo, "job.cancel")] == ["cli"]


def test_a_job_is_retried_from_a_terminal(run: Run, demo: Backend, ada: Person) -> None:
    waiting = orders.order(demo, ada)
    told = said(run, "jobs", "retry", str(waiting.id))
    assert (told["job_id"], told["new"]) == (str(waiting.id), False)
    outcomes.cancel(demo, ada.tenant_id, waiting.id)
    refused = run("jobs", "retry", str(waiting.id), exit_code=2)
    assert refused.stderr.startswith("not_possible_now:")
    failed = lost(demo, ada)
    made = [said(run, "jobs", "retry", str(failed.id)) for _ in range(2)]
    assert made[0] == made[1]
    assert (made[0]["new"], made[0]["status"]) == (True, "queued")
    assert made[0]["job_id"] != str(failed.id)


# The queue


def test_the_queue_is_shown_by_fleet(run: Run, demo: Backend, ada: Person) -> None:
    lost(demo, ada)
    for _ in range(3):
        orders.order(demo, ada)
    orders.lease_next(demo)
    headings, row = run("queue").stdout.splitlines()
    assert headings.startswith("fleet")
    assert row.split()[0] == "gpu-default"
    [figures] = said(run, "queue")
    assert (figures["waiting"], figures["running"], figures["dead_letters_open"]) == (2, 1, 1)
    with demo.databases.central() as session:
        session.query(Fleet).one().is_active = False
    assert run("queue").stdout.splitlines()[1].startswith("gpu-default (off)")


def test_a_job_is_put_to_the_front(run: Run, demo: Backend, ada: Person) -> None:
    first, second = orders.order(demo, ada), orders.order(demo, ada)
    told = run("queue", "front", str(second.id)).stdout
    assert told == f"The job {second.id} waits with priority 1.\n"
    leased = orders.lease_next(demo)
    assert leased is not None
    assert leased.tenant_job_id == second.id
    refused = run("queue", "front", str(second.id), exit_code=2)
    assert "not_possible_now" in refused.stderr
    assert letters.dispatch_of(demo, first).priority == 0


@pytest.mark.parametrize("priority", [-7, 0, 12])
def test_a_job_is_given_a_priority(run: Run, demo: Backend, ada: Person, priority: int) -> None:
    job = orders.order(demo, ada)
    told = said(run, "queue", "priority", str(job.id), str(priority))
    assert told["priority"] == priority
    assert letters.dispatch_of(demo, job).priority == priority


@pytest.mark.parametrize("priority", ["1000001", "-1000001", "high", "--high"])
def test_a_priority_that_is_none_is_said(
    run: Run, demo: Backend, ada: Person, priority: str
) -> None:
    job = orders.order(demo, ada)
    done = run("queue", "priority", str(job.id), priority, exit_code=2)
    assert "Traceback" not in done.output
    assert letters.dispatch_of(demo, job).priority == 0


# Dead letters


def letter_of(backend: Backend, job: Job) -> DeadLetter:
    return letters.kept(backend, job)


def test_dead_letters_are_listed_open_ones_first_of_all(
    run: Run, demo: Backend, ada: Person
) -> None:
    assert run("dead-letters", "list").stdout == "Nothing to show.\n"
    kept = [letter_of(demo, lost(demo, ada)) for _ in range(2)]
    run("dead-letters", "discard", str(kept[0].id), "--note", "Known.")
    [only] = said(run, "dead-letters", "list")
    assert (only["id"], only["reason"]) == (str(kept[1].id), "provider_lost")
    assert len(said(run, "dead-letters", "list", "--status", "all")) == 2
    assert len(said(run, "dead-letters", "list", "--status", "discarded")) == 1
    assert said(run, "dead-letters", "list", "--fleet", "nowhere") == []
    row = run("dead-letters", "list").stdout.splitlines()[1]
    assert "Gone. No such run." in row


def test_a_dead_letter_is_shown_with_trace_and_tries(run: Run, demo: Backend, ada: Person) -> None:
    letter = letter_of(demo, lost(demo, ada))
    told = run("dead-letters", "show", str(letter.id)).stdout
    assert told.endswith("\nTraceback: line 7\n")
    assert "attempt" not in told.splitlines()[0]
    facts = said(run, "dead-letters", "show", str(letter.id))
    assert (facts["error"], facts["history"][0]["ending"]) == ("Gone.\nNo such run.", "fail")
    assert run("dead-letters", "show", str(uuid4()), exit_code=2).stderr.startswith("not_found")


def test_an_error_does_not_command_the_terminal(run: Run, demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    worker = gpu.join(demo)
    evil = "\x1b]0;owned\x07\x1b[2J"
    reports.fail(demo, worker, gpu.take(demo, worker), error=evil, trace=evil, code="provider_lost")
    letter = letter_of(demo, job)
    for command in (
        ["jobs", "show", str(job.id)],
        ["dead-letters", "list"],
        ["dead-letters", "show", str(letter.id)],
        ["audit"],
    ):
        assert not set(run(*command).stdout) & {"\x1b", "\x07"}


def test_a_dead_letter_is_redriven_from_a_terminal(run: Run, demo: Backend, ada: Person) -> None:
    letter = letter_of(demo, lost(demo, ada))
    [told] = said(run, "dead-letters", "redrive", str(letter.id))
    assert (told["id"], told["status"], told["refused"]) == (str(letter.id), "redriven", None)
    again = run("dead-letters", "redrive", str(letter.id)).stdout
    assert again == f"{letter.id}: redriven as job {told['job_id']}.\n"
    assert letters.balance(demo, ada) == 99
    refused = run("dead-letters", "discard", str(letter.id), exit_code=2)
    assert "not_possible_now" in refused.stdout
    assert [row.actor for row in letters.audited(demo, "dead_letter.redrive")] == ["cli"]


def test_all_of_a_fleet_are_redriven_but_for_those_that_can_not_be(
    run: Run, demo: Backend, ada: Person, person: MakePerson
) -> None:
    poor = person(tokens=1)
    unlucky = lost(demo, poor)
    orders.order(demo, poor)
    letters.lose(demo)  # and that is a second letter of the same user
    kept = [letter_of(demo, lost(demo, ada)) for _ in range(2)]
    done = run("dead-letters", "redrive", "--fleet", "gpu-default", exit_code=2)
    assert done.stdout.count("redriven as job") == 3
    assert done.stdout.count("insufficient_tokens") == 1
    assert letter_of(demo, unlucky).status == "redriven"  # it waited longest
    assert {letter_of(demo, job).status for job in letters.every_job(demo, ada)[:2]} == {"redriven"}
    assert len(kept) == 2
    [left] = said(run, "dead-letters", "list")
    assert left["user_id"] == str(poor.user_id)
    done = run("dead-letters", "discard", "--fleet", "gpu-default", "--note", "Poor.")
    assert done.stdout == f"{left['id']}: discarded.\n"
    assert run("dead-letters", "discard", "--fleet", "gpu-default").stdout == "There are none.\n"


def test_a_pool_that_is_away_does_not_stop_the_others(postgres: Backend) -> None:
    demo, run = postgres, runner(postgres.settings)
    catalog.seed_demo(demo)
    ada, far = make_person(demo, tokens=9), make_person(demo, tokens=9, pool="second")
    jobs = [lost(demo, far), lost(demo, ada)]
    broken = {"COMFYFLEET_POOL_URLS": away.pools(demo, "second")["pool_urls"]}
    redrive = ("dead-letters", "redrive", "--fleet", "gpu-default")
    told = said(run, *redrive, exit_code=2, **broken)
    assert [one["refused"] is not None for one in told] == [True, False]
    assert told[0]["refused"].startswith("dependency_unavailable")
    assert [letter_of(demo, job).status for job in jobs] == ["open", "redriven"]
    assert len(said(run, "jobs", "list", **broken)) == 3
    assert said(run, "jobs", "show", str(jobs[1].id), **broken)["job"]["status"] == "failed"
    by_dispatch = str(letters.dispatch_of(demo, jobs[0]).id)
    assert said(run, "jobs", "show", by_dispatch, **broken)["job"] is None
    hidden = run("jobs", "show", str(jobs[0].id), exit_code=2, **broken)
    assert hidden.stderr.startswith("The database does not answer")


@pytest.mark.parametrize("arguments", [[], [str(uuid4()), "--fleet", "gpu-default"], ["nonsense"]])
def test_what_to_redrive_has_to_be_said_clearly(
    run: Run, demo: Backend, arguments: list[str]
) -> None:
    assert "Error:" in run("dead-letters", "redrive", *arguments, exit_code=2).stderr


def test_a_switched_off_effect_is_said(run: Run, demo: Backend, ada: Person) -> None:
    letter = letter_of(demo, lost(demo, ada))
    with demo.databases.central() as session:
        session.query(Effect).filter_by(slug=orders.EFFECT).one().is_active = False
    done = run("dead-letters", "redrive", str(letter.id), exit_code=2)
    assert "effect_unavailable: The effect 'colour-card' is switched off" in done.stdout


# The audit log, and wallets


def test_the_audit_log_is_shown_and_filtered(run: Run, demo: Backend, ada: Person) -> None:
    job = lost(demo, ada)
    money.credit(
        demo, user_id=ada.user_id, amount=5, provider_transaction_id="pi_1", note="x" * 300,
        actor="cli",
    )  # fmt: skip
    newest = run("audit", "--limit", "1").stdout.splitlines()
    assert "wallet.credit" in newest[1]
    assert newest[1].endswith("…")
    [row] = said(run, "audit", "--event", "wallet.credit")
    assert (row["actor"], row["details"]["note"]) == ("cli", "x" * 300)
    by_job = said(run, "audit", "--job", str(job.id))
    assert [row["event"] for row in by_job] == ["job.fail", "job.lease"]
    by_worker = said(run, "audit", "--worker", by_job[0]["worker_id"])
    assert [row["event"] for row in by_worker] == ["job.fail", "job.lease", "worker.register"]
    assert said(run, "audit", "--actor", "user:nobody") == []


def test_a_wallet_is_shown_from_a_terminal(run: Run, demo: Backend, ada: Person) -> None:
    job = orders.order(demo, ada)
    told = said(run, "wallet", "show", ada.email)
    assert (told["balance"], told["reserved"], UUID(told["user_id"])) == (99, 1, ada.user_id)
    assert [row["amount"] for row in told["transactions"]] == [-1, 100]
    table = run("wallet", "show", ada.email).stdout
    assert table.startswith(f"{ada.email} can spend 99 tokens; 1 are reserved.")
    assert str(job.id) in table
    assert run("wallet", "show", "nobody@x.y", exit_code=2).stderr.startswith("not_found")
