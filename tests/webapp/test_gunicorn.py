"""The web server as we start it: many clients that keep their connections hold up nobody."""

import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest

from scripts.cli_serve import gunicorn_command
from scripts.server_process import free_port
from tasks.backend import Backend

CLIENTS = 1200  # more than gunicorn keeps by itself


@pytest.fixture
def port(sqlite: Backend, tmp_path: Path) -> Iterator[int]:
    chosen = free_port()
    settings = replace(sqlite.settings, public_url=f"http://127.0.0.1:{chosen}")
    given = {f"COMFYFLEET_{name.upper()}": str(value) for name, value in vars(settings).items()}
    log = tmp_path / "gunicorn.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            gunicorn_command(
                host="127.0.0.1", port=chosen, workers=1, threads=2, graceful_seconds=1
            ),
            env=os.environ | given,
            stdout=output,
            stderr=output,
        )
    try:
        for _ in range(600):
            if answers(chosen):
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield chosen
    finally:
        process.terminate()
        process.wait(20)


def answers(port: int) -> bool:
    client = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        return ask(client)
    except OSError:
        return False
    finally:
        client.close()


def ask(client: HTTPConnection) -> bool:
    client.request("GET", "/healthz")
    answer = client.getresponse()
    return answer.status == 200 and bool(answer.read())


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_more_connections_are_kept_than_gunicorn_keeps_by_itself(port: int) -> None:
    """Without our setting, each one past the thousandth waits for seconds: this takes minutes."""
    with ExitStack() as kept:
        clients = [HTTPConnection("127.0.0.1", port, timeout=10) for _ in range(CLIENTS)]
        for client in clients:
            kept.callback(client.close)
            assert ask(client)
        assert all(ask(client) for client in clients)
        assert all(client.sock for client in clients)
