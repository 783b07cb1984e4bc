"""`comfyfleet fleets redis-acl`: what it prints makes the user on a real Redis."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from redis import Redis
from redis.exceptions import AuthenticationError

from models.fleets import Fleet
from scripts import servers
from scripts.cli import main
from scripts.server_process import Program, running
from tasks import catalog, redis_acl
from tasks.backend import Backend
from tasks.redis_acl import FleetUser

FLEET = "gpu-default"
PASSWORD = "of the tests: with spaces, a / and an @"

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own: users belong to a whole server."""
    with servers.redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def admin(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as redis:
        yield redis


@pytest.fixture
def run(sqlite: Backend) -> Run:
    catalog.seed_demo(sqlite)
    given = ("central_url", "pool_urls", "redis_url", "storage_url", "secret_key")
    env = {f"COMFYFLEET_{name.upper()}": str(getattr(sqlite.settings, name)) for name in given}

    def run(*arguments: str, exit_code: int = 0) -> Result:
        done = CliRunner().invoke(main, ["fleets", "redis-acl", *arguments], env=env)
        assert done.exit_code == exit_code, done.output
        return done

    return run


def may_ping(redis_url: str) -> bool:
    with Redis.from_url(redis_url) as redis:
        return bool(redis.ping())


def test_the_printed_line_makes_the_user(run: Run, admin: Redis, redis_url: str) -> None:
    told = json.loads(run(FLEET, "--json").stdout)
    assert told["password"] not in told["line"]
    admin.execute_command(*told["line"].split(" "))
    assert may_ping(told["redis_url"])
    with pytest.raises(AuthenticationError):
        may_ping(redis_acl.worker_url(redis_url, told["user"], "another"))


def test_what_to_do_is_told_beside_the_line(run: Run) -> None:
    done = run(FLEET)
    assert done.stdout.startswith(f"ACL SETUSER fleet-{FLEET} reset on #")
    assert done.stdout.count("\n") == 1
    assert f"COMFYFLEET_REDIS_URL=redis://fleet-{FLEET}:" in done.stderr


def test_new_rules_leave_the_password_alone(
    run: Run, admin: Redis, redis_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    first = run(FLEET, "--password-file", str(file))
    assert PASSWORD not in first.output
    for done in (first, run(FLEET, "--no-password")):
        admin.execute_command(*done.stdout.strip().split(" "))
        assert may_ping(redis_acl.worker_url(redis_url, f"fleet-{FLEET}", PASSWORD))


def test_a_line_of_the_file_of_users_makes_the_same_user(run: Run, tmp_path: Path) -> None:
    password, users = tmp_path / "password", tmp_path / "users.acl"
    password.write_text(PASSWORD)
    line = run(FLEET, "--file-format", "--password-file", str(password)).stdout
    users.write_text(f"user default on nopass ~* &* +@all\n{line}")
    command = [*servers.redis_command(tmp_path / "redis"), "--aclfile", str(users)]
    with (
        running(
            Program(name="Redis", log=tmp_path / "redis.log"),
            lambda port: [*command, "--port", str(port)],
            lambda port, pid: servers.redis_answers(servers.redis_url(port), pid),
        ) as port,
        Redis.from_url(servers.redis_url(port)) as redis,
    ):
        from_file = redis.acl_getuser(f"fleet-{FLEET}")
        redis.execute_command(*FleetUser(FLEET).set_user(PASSWORD).split(" "))
        assert redis.acl_getuser(f"fleet-{FLEET}") == from_file


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-fleet"], "There is no fleet 'no-such-fleet' in stage 'dev'."),
        ([FLEET, "--stage", "production"], f"There is no fleet '{FLEET}' in stage 'production'."),
        (["control"], "There is no fleet 'control' in stage 'dev'."),
        ([FLEET, "--no-password", "--password-file", __file__], "contradict each other"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, arguments: list[str], said: str) -> None:
    assert said in run(*arguments, exit_code=2).stderr


def test_a_fleet_that_would_share_the_control_workers_queue_is_refused(
    run: Run, sqlite: Backend
) -> None:
    with sqlite.databases.central() as session:
        session.add(Fleet(stage="dev", slug="control", name="Of an earlier release"))
    assert "can't be the name of a fleet" in run("control", exit_code=2).stderr
