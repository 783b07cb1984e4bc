"""A webapp that can't answer, or something else that answers in its place."""

import socket
import threading
from collections.abc import Iterator

import pytest

from gpu_worker.backend import Backend, Unreachable
from scripts.server_process import free_port
from tests.gpu_worker.backend_replies import (
    Reply,
    Request,
    cut_short,
    dropped,
    problem,
    says,
    text,
    when,
)
from tests.gpu_worker.backend_stand_in import BackendStandIn, backend_stand_in, membership


@pytest.fixture
def webapp() -> Iterator[BackendStandIn]:
    with backend_stand_in() as server:
        yield server


@pytest.mark.parametrize(
    "reply",
    [
        problem(500, "internal_error"),
        problem(503, "dependency_unavailable"),
        problem(429, "rate_limited"),
        text("<h1>Bad Gateway</h1>", status=502),
        text("<h1>Not found</h1>", status=404),
        text("not JSON at all"),
        text(""),
        says(["a", "list"]),
        says(None),
        says({"not": "what was asked for"}),
        lambda request: request.answer(204),
        says({"status": "completed"}, status=302),
        dropped,
        cut_short,
    ],
)
def test_an_answer_that_is_none_means_that_the_webapp_is_away(
    webapp: BackendStandIn, reply: Reply
) -> None:
    backend = webapp.backend()
    webapp.script("complete", reply)
    with pytest.raises(Unreachable):
        backend.complete(webapp.lease(), outputs=[])
    assert len(webapp.calls("complete")) == 1
    assert backend.complete(webapp.lease(), outputs=[]) == "completed"


def test_nobody_at_the_address_means_away() -> None:
    backend = Backend(f"http://127.0.0.1:{free_port()}", membership())
    with pytest.raises(Unreachable, match="register: ConnectionRefusedError"):
        backend.register()
    assert backend.token == ""


def test_a_webapp_that_takes_too_long_is_away(webapp: BackendStandIn) -> None:
    backend = webapp.backend(read_seconds=0.1)
    for_ever = threading.Event()
    webapp.script("poll", when(for_ever, says({})))
    with pytest.raises(Unreachable, match="poll: TimeoutError"):
        backend.poll()
    for_ever.set()


def test_a_register_without_a_token_means_away(webapp: BackendStandIn) -> None:
    webapp.script("register", says({}, status=201))
    with pytest.raises(Unreachable, match="no token"):
        webapp.backend()


def test_redirects_are_not_followed(webapp: BackendStandIn) -> None:
    backend = webapp.backend()
    elsewhere = f"{webapp.url}/api/worker/deregister"
    for status in (301, 302, 307, 308):
        webapp.script("poll", text("{}", status=status, Location=elsewhere))
        with pytest.raises(Unreachable, match=str(status)):
            backend.poll()
    assert webapp.calls("deregister") == []


def test_a_connection_that_was_closed_meanwhile_is_opened_again(webapp: BackendStandIn) -> None:
    backend, hung_up = webapp.backend(), threading.Event()

    def and_hang_up(request: Request) -> None:
        webapp.usual(request)
        request.connection.shutdown(socket.SHUT_WR)
        request.close_connection = True
        hung_up.set()

    webapp.script("heartbeat", and_hang_up)
    backend.heartbeat()
    assert hung_up.wait(10)
    assert backend.heartbeat()["draining"] is False
