"""Links between a real client and a real server: what passes, and what a trouble does to it."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.chaos.links import DELAY_SECONDS, HOST, Links, Trouble

SECONDS = 10.0
QUIET_SECONDS = 0.3


class Echo(socketserver.StreamRequestHandler):
    heard: list[bytes] = []

    def handle(self) -> None:
        for line in self.rfile:
            self.heard.append(line)
            self.wfile.write(line)


@pytest.fixture
def echo() -> Iterator[int]:
    Echo.heard = []
    with socketserver.ThreadingTCPServer((HOST, 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def links(echo: int) -> Iterator[Links]:
    with closing(Links()) as links:
        yield links


@pytest.fixture
def port(links: Links, echo: int) -> int:
    return links.open("a>b", echo)


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=SECONDS)


def ask(client: socket.socket, line: bytes = b"hello\n") -> bytes:
    client.sendall(line)
    return client.recv(100)


def is_broken(client: socket.socket) -> bool:
    try:
        return ask(client) == b""
    except ConnectionError:
        return True


def is_silent(client: socket.socket) -> bool:
    client.settimeout(QUIET_SECONDS)
    try:
        client.recv(100)
    except TimeoutError:
        return True
    finally:
        client.settimeout(SECONDS)
    return False


def test_what_is_sent_arrives_and_the_end_too(port: int) -> None:
    with connect(port) as client:
        assert ask(client) == b"hello\n"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""


def test_cut_it_breaks_and_refuses_until_the_end(links: Links, port: int) -> None:
    with connect(port) as before:
        assert ask(before) == b"hello\n"
        links.begin("a>b", Trouble.CUT)
        assert is_broken(before)
    with connect(port) as during:
        assert is_broken(during)
    links.end("a>b", Trouble.CUT)
    with connect(port) as after:
        assert ask(after) == b"hello\n"


def test_of_two_troubles_the_longer_one_counts(links: Links, port: int) -> None:
    for _ in range(2):
        links.begin("a>b", Trouble.STALL)
    links.end("a>b", Trouble.STALL)
    with connect(port) as client:
        client.sendall(b"hello\n")
        assert is_silent(client)
        links.end("a>b", Trouble.STALL)
        assert client.recv(100) == b"hello\n"


def test_reset_it_breaks_and_is_well_at_once(links: Links, port: int) -> None:
    with connect(port) as before:
        assert ask(before) == b"hello\n"
        links.reset("a>b")
        assert is_broken(before)
    with connect(port) as after:
        assert ask(after) == b"hello\n"


def test_stalled_nothing_passes_and_nothing_is_lost(links: Links, port: int) -> None:
    with connect(port) as client:
        assert ask(client) == b"hello\n"
        links.begin("a>b", Trouble.STALL)
        client.sendall(b"again\n")
        assert is_silent(client)
        assert Echo.heard == [b"hello\n"]
        links.end("a>b", Trouble.STALL)
        assert client.recv(100) == b"again\n"


def test_slow_everything_comes_later(links: Links, port: int) -> None:
    links.begin("a>b", Trouble.SLOW)
    with connect(port) as client:
        begin = time.monotonic()
        assert ask(client) == b"hello\n"
        assert time.monotonic() - begin >= 2 * DELAY_SECONDS


def test_mute_it_brings_the_question_and_loses_the_answer(links: Links, port: int) -> None:
    links.begin("a>b", Trouble.MUTE)
    with connect(port) as client:
        client.sendall(b"hello\n")
        assert is_silent(client)
        assert Echo.heard == [b"hello\n"]
        links.end("a>b", Trouble.MUTE)
        assert is_broken(client)  # or it would read on in the middle of an answer


def test_nobody_behind_it_is_like_nobody_there(links: Links) -> None:
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        port = links.open("a>nobody", unused.getsockname()[1])
        with connect(port) as client:
            assert is_broken(client)
