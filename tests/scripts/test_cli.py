"""`comfyfleet`, as a person runs it: output, `--json`, exit codes; and a server that serves."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner, Result
from sqlalchemy import text

from models.effects import Effect
from models.fleets import Fleet, WorkflowFleet
from models.ledger import Transaction, Wallet
from models.session import make_engine
from models.settings import Settings
from models.tenants import Tenant
from models.users import User
from models.workflows import Workflow
from scripts.cli import main
from tasks.backend import Backend
from tests.fixtures import POOLS, SECRET, make_person, sqlite_settings

Run = Callable[..., Result]


def environment(settings: Settings) -> dict[str, str]:
    """Settings as a person gives them."""
    given = {
        "central_url": settings.central_url,
        "pool_urls": settings.pool_urls,
        "redis_url": settings.redis_url,
        "storage_url": settings.storage_url,
        "secret_key": settings.secret_key,
    }
    return {f"COMFYFLEET_{name.upper()}": value for name, value in given.items()}


def runner(settings: Settings) -> Run:
    def run(*arguments: str, exit_code: int = 0, **changed: str) -> Result:
        env = environment(settings) | changed
        done = CliRunner().invoke(main, arguments, env=env)
        assert done.exit_code == exit_code, done.output + repr(done.exception)
        return done

    return run


@pytest.fixture
def run(backend: Backend) -> Run:
    """Runs a command against databases that are migrated, on both kinds."""
    return runner(backend.settings)


@pytest.fixture
def fresh(tmp_path: Path) -> Settings:
    """Settings of databases that do not exist yet."""
    settings = sqlite_settings(tmp_path / "fresh")
    return Settings(
        central_url=settings.central_url,
        pool_urls=settings.pool_urls,
        storage_url=f"file://{tmp_path}/objects",
        secret_key=SECRET,
    )


def test_migrating_brings_every_database_to_the_current_schema(fresh: Settings) -> None:
    run = runner(fresh)
    behind = json.loads(run("db", "status", "--json", exit_code=1).stdout)
    assert [one["database"] for one in behind] == ["central", *(f"pool:{p}" for p in POOLS)]
    assert not any(one["is_current"] or one["revision"] for one in behind)
    said = run("db", "status", exit_code=1).stdout
    assert "central: no schema, needs" in said
    assert "run `comfyfleet db migrate`" in said

    done = json.loads(run("db", "migrate", "--json").stdout)
    assert [one["database"] for one in done] == ["central", "pool:main", "pool:second"]
    current = json.loads(run("db", "status", "--json").stdout)
    assert all(one["is_current"] for one in current)
    assert {one["revision"] for one in current} == {one["revision"] for one in done}


def test_migrating_may_be_repeated(run: Run) -> None:
    first, second = run("db", "migrate").stdout, run("db", "migrate").stdout
    assert first == second
    assert first.startswith("central: at ")
    assert run("db", "status").stdout.count("\n") == 3


def test_a_database_that_does_not_answer_is_said_in_one_line(fresh: Settings) -> None:
    away = "postgresql+psycopg2://nobody@127.0.0.1:1/nothing"
    for command in (["db", "migrate"], ["db", "status"], ["ledger", "verify"], ["seed"]):
        done = runner(fresh)(*command, exit_code=2, COMFYFLEET_CENTRAL_URL=away)
        assert done.stderr.startswith("The database does not answer:")
        assert "Traceback" not in done.output


def test_a_setting_that_is_none_is_said_in_one_line(fresh: Settings) -> None:
    done = runner(fresh)("db", "migrate", exit_code=2, COMFYFLEET_MAX_ATTEMPTS="three")
    assert "COMFYFLEET_MAX_ATTEMPTS is 'three'; it takes a number." in done.stderr


@pytest.mark.parametrize(
    "command", [["seed"], ["ledger", "verify"], ["wallet", "credit", "a@b.c", "5"]]
)
def test_an_old_schema_is_refused_with_what_to_do(fresh: Settings, command: list[str]) -> None:
    done = runner(fresh)(*command, exit_code=2)
    assert "central is at nothing, this code needs" in done.stderr
    assert done.stderr.strip().endswith("Run `comfyfleet db migrate`.")


def test_seeding_twice_changes_nothing(run: Run, backend: Backend) -> None:
    first = json.loads(run("seed", "--json").stdout)
    assert (first["workflows"], first["effects"], first["fleets"]) == (7, 8, 1)
    demo, admin = first["users"]
    assert (demo["email"], demo["role"]) == ("demo@comfyfleet.dev", "user")
    assert (admin["email"], admin["role"]) == ("admin@comfyfleet.dev", "admin")
    assert min(len(demo["password"]), len(admin["password"])) >= 12
    counted = rows(backend)

    second = json.loads(run("seed", "--json").stdout)
    assert [user["password"] for user in second["users"]] == [None, None]
    assert rows(backend) == counted
    assert "was there already" in run("seed").stdout
    assert "1 wallets" in run("ledger", "verify").stdout


CENTRAL = (Tenant, User, Workflow, Effect, Fleet, WorkflowFleet)
TENANT = (Wallet, Transaction)


def rows(backend: Backend) -> dict[str, int]:
    """How many rows there are; the audit log grows with each payment that is repeated."""
    with backend.databases.central() as session:
        central = {kind.__name__: session.query(kind).count() for kind in CENTRAL}
    with backend.databases.pool("main") as session:
        return central | {kind.__name__: session.query(kind).count() for kind in TENANT}


def test_seeding_takes_the_names_and_passwords_it_is_given(run: Run) -> None:
    given = ["--demo-email", "Ada@Example.com", "--demo-password", "correct horse"]
    said = run("seed", *given).stdout
    assert "user: Ada@Example.com, password correct horse" in said


def test_a_ledger_that_adds_up_is_proven(run: Run, backend: Backend) -> None:
    assert run("ledger", "verify").stdout.strip() == (
        "The ledger adds up: 0 wallets, 0 transactions, 0 jobs."
    )
    make_person(backend, tokens=30)
    make_person(backend, tokens=5, pool="second")
    proof = json.loads(run("ledger", "verify", "--json").stdout)
    counted = {"wallets": 2, "transactions": 2, "jobs": 0}
    assert proof == {"checked": counted, "disagreements": []}


def test_a_ledger_that_was_tampered_with_is_listed(run: Run, backend: Backend) -> None:
    honest = make_person(backend, tokens=30)
    robbed = make_person(backend, tokens=30, pool="second")
    owner = make_engine(backend.settings.pools["second"], as_owner=True)
    with owner.begin() as connection:
        connection.execute(text("UPDATE token_wallets SET balance = 1000"))
    owner.dispose()
    found = json.loads(run("ledger", "verify", "--json", exit_code=1).stdout)
    [one] = found["disagreements"]
    assert (one["pool"], one["tenant_id"]) == ("second", str(robbed.tenant_id))
    assert one["finding"] == "The balance is 1000, its transactions add up to 30."
    said = run("ledger", "verify", exit_code=1).stdout
    assert f"second tenant {robbed.tenant_id} wallet:" in said
    assert str(honest.tenant_id) not in said


def test_a_payment_is_booked_once_for_its_transaction_id(run: Run, backend: Backend) -> None:
    ada = make_person(backend)
    pay = ("wallet", "credit", ada.email, "50", "--transaction-id", "pi_1", "--json")
    first, second = json.loads(run(*pay).stdout), json.loads(run(*pay).stdout)
    assert (first["amount"], first["user_id"]) == (50, str(ada.user_id))
    assert (first["new"], second["new"]) == (True, False)
    assert first["transaction_id"] == second["transaction_id"]
    said = run("wallet", "credit", ada.email, "50", "--transaction-id", "pi_1").stdout
    assert said == f"Was booked before: 50 tokens for {ada.email} (pi_1).\n"
    assert "1 transactions" in run("ledger", "verify").stdout


def test_without_a_transaction_id_each_payment_is_a_new_one(run: Run, backend: Backend) -> None:
    ada = make_person(backend)
    for _ in range(2):
        said = run("wallet", "credit", ada.email, "5", "--note", "Sorry").stdout
        assert said.startswith("Booked 5 tokens")
    assert "2 transactions" in run("ledger", "verify").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody@example.com", "5"], "not_found: Nobody is registered as nobody@example.com."),
        (["ada", "0"], "0 is not in the range x>=1"),
        (["ada", "many"], "'many' is not a valid integer range"),
        (["ada"], "Missing argument 'AMOUNT'"),
    ],
)
def test_a_payment_that_cannot_be_booked_is_refused(
    run: Run, arguments: list[str], said: str
) -> None:
    assert said in run("wallet", "credit", *arguments, exit_code=2).stderr


def test_a_payment_id_that_was_used_differently_is_refused(run: Run, backend: Backend) -> None:
    ada, bob = make_person(backend), make_person(backend)
    run("wallet", "credit", ada.email, "50", "--transaction-id", "pi_1")
    for email, amount in ((ada.email, "51"), (bob.email, "50")):
        again = ("wallet", "credit", email, amount, "--transaction-id", "pi_1")
        assert "transaction_id_reused" in run(*again, exit_code=2).stderr


def every_command(group: Any, path: list[str]) -> Iterator[list[str]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from every_command(command, [*path, name])


COMMANDS = list(every_command(main, []))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "itself")
def test_every_command_explains_itself(command: list[str]) -> None:
    for option in ("--help", "-h"):
        done = CliRunner().invoke(main, [*command, option])
        assert done.exit_code == 0
        assert done.stdout.startswith("Usage:")
        assert len(done.stdout.split("\n\n")[1].strip()) > 10


def test_operators_have_a_command_for_everything() -> None:
    nouns = "audit control dead-letters effects fleets jobs ledger queue wallet workers workflows"
    assert {path[0] for path in COMMANDS if path} >= set(nouns.split())


def test_an_unknown_command_is_refused() -> None:
    assert CliRunner().invoke(main, ["dance"]).exit_code == 2


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("comfyfleet, version ")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def serving(settings: Settings, port: int, **changed: str) -> Iterator[subprocess.Popen[str]]:
    """In a process of its own, because the command turns into the server."""
    command = [sys.executable, "-m", "scripts.cli", "serve", "--port", str(port), "--workers", "1"]
    env = os.environ | environment(settings) | changed
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(address: str, process: subprocess.Popen[str]) -> requests.Response:
    """The first answer of a server that is starting."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return requests.get(address, timeout=5)
        except requests.ConnectionError:
            assert process.poll() is None, process.stdout and process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "central is at nothing, this code needs"),
        ({"COMFYFLEET_SECRET_KEY": "short"}, "COMFYFLEET_SECRET_KEY needs at least 32 characters"),
        (
            {"COMFYFLEET_CENTRAL_URL": "postgresql+psycopg2://nobody@127.0.0.1:1/x"},
            "The database does not answer",
        ),
    ],
    ids=["old schema", "no secret", "no database"],
)
def test_a_server_that_cannot_serve_says_why_in_one_line(
    fresh: Settings, changed: dict[str, str], said: str
) -> None:
    with serving(fresh, free_port(), **changed) as process:
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert printed.startswith(said), printed


def test_a_server_serves_until_it_is_told_to_stop(postgres: Backend) -> None:
    port = free_port()
    ada = make_person(postgres, tokens=30)
    address = f"http://127.0.0.1:{port}"
    with serving(postgres.settings, port) as process:
        assert answer(f"{address}/healthz", process).json() == {"status": "ok"}
        assert requests.get(f"{address}/readyz", timeout=5).json()["status"] == "ready"
        wallet = requests.get(f"{address}/api/wallet", headers=ada.headers, timeout=5)
        assert wallet.json() == {"balance": 30, "reserved": 0}
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
        assert process.returncode == 0, said
    assert f"Serving on {address} (docs at /docs). Ctrl-C stops." in said
