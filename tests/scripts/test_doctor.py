"""`comfyfleet doctor` finds what is wrong, one thing at a time, against real servers."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis

from models import control_turns, fleets
from models.base import utcnow
from models.settings import Settings
from models.workers import Worker
from scripts.cli import main
from scripts.server_process import free_port
from tasks import catalog, schedule
from tasks.backend import Backend
from tests.fixtures import SECRET, sqlite_settings
from tests.scripts.small_servers import http_server, old_redis

Diagnose = Callable[..., dict[str, tuple[bool, str]]]


@pytest.fixture
def settings(sqlite: Backend) -> Settings:
    """A backend that has everything: schema, catalog, a worker and a beat seen a moment ago."""
    catalog.seed_demo(sqlite)
    put_worker(sqlite)
    note_turns(sqlite)
    return sqlite.settings


def note_turns(backend: Backend, *, seconds_ago: int = 0) -> None:
    finished_at = utcnow() - timedelta(seconds=seconds_ago)
    with backend.databases.central() as session:
        for task in schedule.control_tasks(backend.settings):
            control_turns.finish(session, task.name, done={}, now=finished_at)


def put_worker(backend: Backend, *, seconds_ago: int = 0) -> None:
    with backend.databases.central() as session:
        fleet = fleets.get(session, stage="dev", slug="gpu-default")
        worker = Worker(
            worker_id="i-1",
            fleet_id=fleet.id,
            token_hash="x",
            providers=[],
            capabilities={},
            last_seen_at=utcnow() - timedelta(seconds=seconds_ago),
        )
        session.add(worker)


@pytest.fixture
def diagnose(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Diagnose:
    monkeypatch.chdir(tmp_path)  # no stack is here
    given = {
        f"COMFYFLEET_{name.upper()}": str(getattr(settings, name))
        for name in ("central_url", "pool_urls", "redis_url", "storage_url", "secret_key")
    }

    def run(*arguments: str, **changed: str) -> dict[str, tuple[bool, str]]:
        env = given | {"COMFYFLEET_PUBLIC_URL": f"http://127.0.0.1:{free_port()}"} | changed
        done = CliRunner().invoke(main, ["doctor", "--json", *arguments], env=env)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        told = json.loads(done.stdout)
        assert done.exit_code == (0 if told["ok"] else 1)
        assert told["ok"] == all(check["is_ok"] for check in told["checks"])
        return {check["check"]: (check["is_ok"], check["sentence"]) for check in told["checks"]}

    return run


def bad(found: dict[str, tuple[bool, str]]) -> dict[str, str]:
    return {name: sentence for name, (is_ok, sentence) in found.items() if not is_ok}


def test_all_is_well(diagnose: Diagnose) -> None:
    comfyui = {"/system_stats": {"system": {"comfyui_version": "0.7.0"}}}
    with http_server(comfyui) as url, http_server({"/healthz": {"status": "ok"}}) as api:
        found = diagnose("--comfyui", url, COMFYFLEET_PUBLIC_URL=api)
    assert bad(found) == {}
    assert found["comfyui"][1] == f"ComfyUI 0.7.0 answers at {url}"
    assert found["port"][1] == f"the API answers at {api}"
    assert found["workers"][1].startswith("1 GPU worker heard of")
    assert found["broker"][1] == "tickets can be sent to gpu-default"


def test_looking_leaves_nothing_behind(diagnose: Diagnose, sqlite: Backend) -> None:
    objects = Path(sqlite.settings.storage_url.removeprefix("file://"))
    files = sorted(path for path in objects.rglob("*") if path.is_file())
    assert bad(diagnose()) == {}
    assert sorted(path for path in objects.rglob("*") if path.is_file()) == files
    with Redis.from_url(sqlite.settings.redis_url) as redis:
        assert redis.keys() == []


def test_a_database_without_its_schema(diagnose: Diagnose, tmp_path: Path) -> None:
    fresh = sqlite_settings(tmp_path / "fresh")
    found = bad(
        diagnose(COMFYFLEET_CENTRAL_URL=fresh.central_url, COMFYFLEET_POOL_URLS=fresh.pool_urls)
    )
    assert set(found) == {"database", "workers", "control"}
    assert found["database"] == (
        "Not migrated: central, pool:main, pool:second. Run `comfyfleet db migrate`."
    )


def test_a_database_that_does_not_answer(diagnose: Diagnose) -> None:
    url = f"postgresql+psycopg2://nobody@127.0.0.1:{free_port()}/x"
    found = bad(diagnose(COMFYFLEET_CENTRAL_URL=url))
    assert set(found) == {"database", "workers", "control"}
    assert found["database"].startswith("A database does not answer: ")


def test_a_redis_that_does_not_answer(diagnose: Diagnose) -> None:
    found = bad(diagnose(COMFYFLEET_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0"))
    assert set(found) == {"redis", "broker", "clock"}
    assert found["redis"].startswith("Redis does not answer: ")


@pytest.mark.parametrize("version", ["5.0.7", "6.0.16"])
def test_a_redis_that_is_too_old(diagnose: Diagnose, version: str) -> None:
    with old_redis(version) as url:
        found = bad(diagnose(COMFYFLEET_REDIS_URL=url))
    assert found["redis"] == f"Redis {version} is too old: 6.2 or newer is needed."


def test_a_redis_that_is_just_new_enough(diagnose: Diagnose) -> None:
    with old_redis("6.2.0") as url:
        assert diagnose(COMFYFLEET_REDIS_URL=url)["redis"] == (True, "Redis 6.2.0 answers")


def test_a_redis_user_that_may_not_send_tickets(diagnose: Diagnose, settings: Settings) -> None:
    user = f"reader-{os.getpid()}"
    with Redis.from_url(settings.redis_url) as redis:
        allowed = ["+info", "+ping", "+time", "+select", "+client", "+multi", "+exec", "+discard"]
        redis.execute_command("ACL", "SETUSER", user, "on", ">pw", "~*", "-@all", *allowed)
        try:
            url = settings.redis_url.replace("redis://", f"redis://{user}:pw@")
            found = bad(diagnose(COMFYFLEET_REDIS_URL=url))
        finally:
            redis.acl_deluser(user)
    assert set(found) == {"broker"}
    assert "Check the rights of the Redis user." in found["broker"]


def test_a_secret_key_that_is_too_short(diagnose: Diagnose) -> None:
    found = bad(diagnose(COMFYFLEET_SECRET_KEY=SECRET[:31]))
    assert "shorter than 32 characters" in found["secret key"]


def test_a_storage_that_cannot_be_written(diagnose: Diagnose, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = bad(diagnose(COMFYFLEET_STORAGE_URL=f"file://{tmp_path}/file"))
    assert set(found) == {"storage"}
    assert found["storage"].startswith(f"The storage file://{tmp_path}/file can't be used: ")


def test_a_port_that_somebody_else_has(diagnose: Diagnose) -> None:
    with http_server({}) as url:
        found = bad(diagnose(COMFYFLEET_PUBLIC_URL=url))
    assert set(found) == {"port"}
    assert "is taken by another program" in found["port"]


def test_a_comfyui_that_does_not_answer(diagnose: Diagnose) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert bad(diagnose("--comfyui", url)) == {
        "comfyui": f"No ComfyUI answers at {url}. Is it running, and reachable?"
    }


@pytest.mark.parametrize("answer", [None, {"system": {}}, {"system": None}, []])
def test_something_else_in_the_place_of_comfyui(diagnose: Diagnose, answer: Any) -> None:
    with http_server({"/system_stats": answer}) as url:
        assert bad(diagnose("--comfyui", url)) == {
            "comfyui": f"What answers at {url} is no ComfyUI."
        }


def test_a_worker_not_heard_of_for_long(diagnose: Diagnose, sqlite: Backend) -> None:
    with sqlite.databases.central() as session:
        for worker in session.query(Worker):
            worker.last_seen_at = utcnow() - timedelta(seconds=130)
    assert set(bad(diagnose())) == {"workers"}


def test_a_beat_that_died(diagnose: Diagnose, sqlite: Backend) -> None:
    note_turns(sqlite, seconds_ago=100)  # in time for all but the most frequent
    assert set(bad(diagnose())) == {"control"}
    note_turns(sqlite, seconds_ago=100_000)
    every = ", ".join(task.name for task in schedule.control_tasks(sqlite.settings))
    assert bad(diagnose())["control"].startswith(f"Not done in time: {every}. ")


def test_it_is_told_in_lines_too(diagnose: Diagnose, settings: Settings) -> None:
    env = {
        "COMFYFLEET_CENTRAL_URL": settings.central_url,
        "COMFYFLEET_POOL_URLS": settings.pool_urls,
        "COMFYFLEET_STORAGE_URL": settings.storage_url,
        "COMFYFLEET_REDIS_URL": settings.redis_url,
        "COMFYFLEET_PUBLIC_URL": f"http://127.0.0.1:{free_port()}",
        "COMFYFLEET_SECRET_KEY": settings.secret_key,
    }
    done = CliRunner().invoke(main, ["doctor", "--comfyui", "localhost"], env=env)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "Looking at what the environment describes."
    assert lines[-1] == "1 of 12 checks are bad."
    assert [line[:3] for line in lines[1:-1]].count("ok ") == 11
    assert "BAD  comfyui:     localhost is no address of a ComfyUI" in done.stdout


def test_a_folder_without_a_stack_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["doctor", "--state", str(tmp_path)])
    assert done.exit_code == 2
    assert "There is no stack in" in done.stderr
