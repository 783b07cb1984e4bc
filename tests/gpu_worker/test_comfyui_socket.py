"""The progress socket on what a websocket may carry, and on its ways to break."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from gpu_worker import comfyui_socket
from gpu_worker.comfyui_socket import Message, ProgressSocket, opened

GREETING = {"type": "status", "data": {"sid": "x"}}


class Talker:
    """A real websocket server: greets, then sends what it was told, and notes what it hears."""

    def __init__(self) -> None:
        self.lines: list[str | bytes | None] = []  # None: close
        self.requests: list[web.Request] = []
        self.pings = threading.Semaphore(0)

    async def talk(self, request: web.Request) -> web.WebSocketResponse:
        self.requests.append(request)
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        await socket.send_json(GREETING)
        for line in self.lines:
            if line is None:
                await socket.close()
            elif isinstance(line, str):
                await socket.send_str(line)
            else:
                await socket.send_bytes(line)
        async for message in socket:
            if message.type == web.WSMsgType.PING:
                self.pings.release()
        return socket


@pytest.fixture
def talker() -> Talker:
    return Talker()


@pytest.fixture
def url(talker: Talker) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait_for(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(20)

    app = web.Application()
    app.router.add_get("/base/ws", talker.talk)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    wait_for(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    wait_for(site.start())
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/base"
    wait_for(runner.cleanup())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def received(socket: ProgressSocket, count: int) -> list[Message | None]:
    return [socket.receive(seconds=5) for _ in range(count)]


def test_what_is_no_message_is_ignored(talker: Talker, url: str) -> None:
    good = {"type": "progress", "data": {"value": 1}}
    preview = b"\0\0\0\1\0\0\0\1" + b"x" * 100
    odd: list[str | bytes | None] = [
        preview,
        b"",
        "no json",
        "[]",
        "7",
        "{}",
        '{"type": 1, "data": {}}',
        '{"type": "a", "data": []}',
    ]
    talker.lines = [*odd, json.dumps(good)]
    with opened(url) as socket:
        *ignored, last = received(socket, len(talker.lines))
        assert ignored == [None] * len(odd)
        assert last == Message("progress", {"value": 1})
        assert socket.is_open


def test_a_message_may_be_large(talker: Talker, url: str) -> None:
    text = "ä" * 6_000_000
    talker.lines = [json.dumps({"type": "executed", "data": {"text": text}}, ensure_ascii=False)]
    with opened(url) as socket:
        [message] = received(socket, 1)
    assert message == Message("executed", {"text": text})


def test_silence_is_no_failure(talker: Talker, url: str) -> None:
    with opened(url) as socket:
        assert socket.receive(seconds=0.05) is None
        assert socket.is_open


def test_a_closed_socket_is_not_open_and_raises_nothing(talker: Talker, url: str) -> None:
    talker.lines = [None]
    with opened(url) as socket:
        assert received(socket, 3) == [None] * 3
        assert not socket.is_open


def test_it_pings(talker: Talker, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comfyui_socket, "PING_SECONDS", 0.0)
    with opened(url) as socket:
        socket.receive(seconds=0.05)
        assert talker.pings.acquire(timeout=5)


def test_it_sends_its_id_and_no_origin(
    talker: Talker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with opened(url) as socket:
        assert socket.is_open
    [request] = talker.requests
    assert request.query["clientId"] == socket.client_id
    assert "Origin" not in request.headers


def test_a_server_that_refuses_sockets_is_lived_with(url: str) -> None:
    with opened(f"{url}/elsewhere") as socket:
        assert not socket.is_open
