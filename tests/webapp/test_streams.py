"""Streams over real sockets, each with the test as its client."""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from models.errors import TooManyStreams
from models.settings import Settings
from webapp import streams
from webapp.streams import Event, Stream, Streams

SETTINGS = Settings(max_streams=4, max_user_streams=3)
OWNER = uuid4()


def event(state: str, *, data: str = "{}", is_last: bool = False) -> Event:
    return Event(state, data, name="status", name_while_same="progress", is_last=is_last)


@pytest.fixture
def make() -> Iterator[Callable[..., Streams]]:
    made: list[Streams] = []

    def opened(**changed: int) -> Streams:
        made.append(Streams(replace(SETTINGS, **changed)))
        return made[-1]

    yield opened
    for one in made:
        one.close()


def watch(
    held: Streams,
    topic: str = "job",
    *,
    chunked: bool = False,
    owner: UUID = OWNER,
    lasts: bool = True,
) -> socket.socket:
    """A client of a new stream, which knows the state `queued:0` already."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    held.reserve(owner)
    held.open(Stream(topic, owner, theirs, chunked, last_id="queued:0"))
    until(lambda: topic in held.topics() or not lasts)
    return ours


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read_until(client: socket.socket, end: bytes) -> bytes:
    text = b""
    while not text.endswith(end):
        chunk = client.recv(65536)
        assert chunk, text
        text += chunk
    return text


def test_everybody_who_watches_a_topic_is_told_and_nobody_else(
    make: Callable[..., Streams],
) -> None:
    held = make()
    first, second, other = watch(held), watch(held), watch(held, "another job")
    held.tell("job", event("processing:1", data='{"a": 1}'))
    told = b'id: processing:1\nevent: status\ndata: {"a": 1}\n\n'
    assert [read_until(client, b"\n\n") for client in (first, second)] == [told, told]
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.recv(1)


def test_an_event_is_named_by_what_changed(make: Callable[..., Streams]) -> None:
    held = make()
    client = watch(held)
    for state, name in (("queued:1", "progress"), ("processing:1", "status")):
        held.tell("job", event(state))
        assert f"event: {name}\n".encode() in read_until(client, b"\n\n")


def test_a_state_that_the_client_has_is_not_told_again(make: Callable[..., Streams]) -> None:
    held = make()
    client = watch(held)
    assert not held.is_behind("job", "queued:0")
    assert held.is_behind("job", "processing:1")
    held.tell("job", event("queued:0"))
    held.tell("job", event("processing:1"))
    assert read_until(client, b"\n\n").startswith(b"id: processing:1\n")


def test_a_chunked_stream_ends_as_http_wants_it(make: Callable[..., Streams]) -> None:
    held = make()
    client = watch(held, chunked=True)
    held.tell("job", event("failed:1", is_last=True))
    text = b"id: failed:1\nevent: status\ndata: {}\n\n"
    assert read_until(client, b"0\r\n\r\n") == b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
    assert client.recv(1) == b""
    until(lambda: held.count == 0)
    assert held.topics() == set()


def test_a_client_that_leaves_frees_its_place(make: Callable[..., Streams]) -> None:
    held = make()
    watch(held).close()
    until(lambda: held.count == 0)
    assert held.topics() == set()


def test_a_slow_client_is_given_the_newest_and_not_all_it_missed(
    make: Callable[..., Streams],
) -> None:
    held = make()
    client, long = watch(held), "x" * 4_000_000
    for number in range(50):
        held.tell("job", event(f"processing:{number}", data=long))
    held.tell("job", event("completed:50", is_last=True))
    time.sleep(0.2)
    text = b""
    while chunk := client.recv(1 << 20):
        text += chunk
    ids = [line for line in text.split(b"\n") if line.startswith(b"id: ")]
    assert ids == [b"id: processing:0", b"id: completed:50"]


def test_a_client_that_takes_nothing_is_dropped(
    make: Callable[..., Streams], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STALL_SECONDS", 0.5)
    held = make()
    client = watch(held)
    held.tell("job", event("processing:1", data="x" * 4_000_000))
    until(lambda: held.count == 0)
    client.close()


def test_a_quiet_stream_is_kept_alive(make: Callable[..., Streams]) -> None:
    client = watch(make(stream_keep_alive_seconds=0), chunked=True)
    assert read_until(client, b"\r\n\r\n"[2:]) == b"3\r\n:\n\n\r\n"


def test_a_stream_ends_when_it_is_old(make: Callable[..., Streams]) -> None:
    held = make(stream_seconds=0)
    assert read_until(watch(held, chunked=True, lasts=False), b"0\r\n\r\n") == b"0\r\n\r\n"
    until(lambda: held.count == 0)


def test_streams_are_bounded_for_each_user_and_in_all(make: Callable[..., Streams]) -> None:
    held = make()
    clients = [watch(held) for _ in range(3)]
    with pytest.raises(TooManyStreams, match="Close one"):
        held.reserve(OWNER)
    clients.append(watch(held, owner=uuid4()))
    with pytest.raises(TooManyStreams, match="All streams"):
        held.reserve(uuid4())
    clients.pop().close()
    until(lambda: held.count == 3)
    held.reserve(uuid4())


def test_what_a_client_says_is_ignored(make: Callable[..., Streams]) -> None:
    held = make()
    client = watch(held)
    client.sendall(b"GET /api/me HTTP/1.1\r\n\r\n" * 1000)
    held.tell("job", event("processing:1"))
    assert read_until(client, b"\n\n").startswith(b"id: processing:1\n")


def test_closing_ends_them_all(make: Callable[..., Streams]) -> None:
    held = make()
    clients = [watch(held, chunked=True) for _ in range(3)]
    held.close()
    assert [read_until(client, b"0\r\n\r\n") for client in clients] == [b"0\r\n\r\n"] * 3
    assert held.count == 0
