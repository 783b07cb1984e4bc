"""Ports that are taken, programs that never answer: a server is had, or a sentence says why not."""

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from scripts import server_process, servers


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_server_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    refused = pytest.raises(servers.ServerUnavailable, match=r"(?is)Redis ended.*already in use")
    with taken_port() as port, refused, servers.redis(tmp_path, port=port):
        pass


def test_a_port_that_was_taken_meanwhile_is_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with taken_port() as port:
        ports = iter([port, server_process.free_port()])
        monkeypatch.setattr(server_process, "free_port", lambda: next(ports))
        with servers.redis(tmp_path) as url, Redis.from_url(url) as client:
            assert client.ping()


def test_a_server_that_never_answers_is_given_up_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "START_SECONDS", 0.5)
    program = server_process.Program(name="Sleep", log=tmp_path / "log")
    sleep = shutil.which("sleep")
    assert sleep
    with (
        pytest.raises(servers.ServerUnavailable, match="Sleep did not answer within"),
        server_process.running(program, lambda _port: [sleep, "60"], lambda _port, _pid: False),
    ):
        pass
