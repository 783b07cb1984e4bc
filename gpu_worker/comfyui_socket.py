"""The websocket that ComfyUI tells a prompt's progress on.

It is a convenience. What it says is confirmed by HTTP, and when it breaks the run goes on
without it, so nothing here raises: a broken socket is one that is not open.

Each socket has a client id of its own. Two sockets with one id would starve each other: when
the older closes, ComfyUI forgets the newer.
"""

import contextlib
import json
import logging
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import websocket

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
PING_SECONDS = 15.0  # ComfyUI sends none, and what lies between may cut a silent connection


@dataclass(frozen=True)
class Message:
    kind: str
    content: dict[str, Any]


class ProgressSocket:
    def __init__(self, url: str) -> None:
        self.client_id = uuid4().hex
        self.pinged_at = time.monotonic()
        self.connection: websocket.WebSocket | None = None
        try:
            self.connection = _connect(url, self.client_id)
        except (websocket.WebSocketException, OSError) as error:
            logger.warning("No websocket to ComfyUI: asking it for progress instead. (%s)", error)
            return
        # ComfyUI greets a socket as soon as it knows its id. A prompt sent before that could
        # end with nobody told.
        self.receive(seconds=CONNECT_SECONDS)

    @property
    def is_open(self) -> bool:
        return self.connection is not None

    def receive(self, *, seconds: float) -> Message | None:
        """The next message. None: nothing came, or nothing that we read, or it just broke."""
        if self.connection is None:
            return None
        try:
            self._ping_if_due(self.connection)
            self.connection.settimeout(seconds)
            kind, content = self.connection.recv_data()
        except websocket.WebSocketTimeoutException:
            return None
        except (websocket.WebSocketException, OSError) as error:
            self._broke(str(error))
            return None
        if kind == websocket.ABNF.OPCODE_CLOSE:
            self._broke("closed by ComfyUI")
        return _message(content) if kind == websocket.ABNF.OPCODE_TEXT else None

    def drain(self) -> None:
        """Drop what came while nobody listened. A socket that was closed meanwhile is not open."""
        while (connection := self.connection) and _has_news(connection):
            try:
                kind, _ = connection.recv_data()
            except (websocket.WebSocketException, OSError):
                kind = websocket.ABNF.OPCODE_CLOSE
            if kind == websocket.ABNF.OPCODE_CLOSE:
                connection.shutdown()  # type: ignore[no-untyped-call]
                self.connection = None

    def close(self) -> None:
        if self.connection is not None:
            # Said, but not waited for: the answer is of no use to us.
            with contextlib.suppress(websocket.WebSocketException, OSError):
                self.connection.send_close()
            self.connection.shutdown()  # type: ignore[no-untyped-call]
            self.connection = None

    def _ping_if_due(self, connection: websocket.WebSocket) -> None:
        now = time.monotonic()
        if now - self.pinged_at >= PING_SECONDS:
            self.pinged_at = now
            connection.ping()

    def _broke(self, reason: str) -> None:
        logger.warning("The websocket to ComfyUI broke; asking it from now on. (%s)", reason)
        if self.connection is not None:
            self.connection.shutdown()  # type: ignore[no-untyped-call]
            self.connection = None


def _has_news(connection: websocket.WebSocket) -> bool:
    return connection.sock is not None and bool(select.select([connection.sock], [], [], 0)[0])


class KeptSocket:
    """One socket for run after run: opening it would cost each of them two round trips."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket: ProgressSocket | None = None

    def ready(self) -> ProgressSocket:
        """Open, if that can be had, and with nothing of earlier runs waiting in it."""
        if self._socket is not None:
            self._socket.drain()
        if self._socket is None or not self._socket.is_open:
            self._socket = ProgressSocket(self._url)  # with an id that no other socket had
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


@contextmanager
def opened(url: str) -> Iterator[ProgressSocket]:
    socket = ProgressSocket(url)
    try:
        yield socket
    finally:
        socket.close()


def _connect(url: str, client_id: str) -> websocket.WebSocket:
    parts = urlsplit(url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    address = urlunsplit((scheme, parts.netloc, f"{parts.path}/ws", f"clientId={client_id}", ""))
    return websocket.create_connection(
        address,
        timeout=CONNECT_SECONDS,
        suppress_origin=True,  # ComfyUI refuses origins that are not exactly its own name
        # No proxy of the machine: the library hears "for nobody" only next to a proxy's name.
        http_proxy_host="none.invalid",
        http_proxy_port=1,
        http_no_proxy=["*"],
        skip_utf8_validation=True,  # slow, and parsing the JSON finds out as well
    )


def _message(text: bytes) -> Message | None:
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    if not isinstance(parsed, dict):
        return None
    kind, content = parsed.get("type"), parsed.get("data")
    if not isinstance(kind, str) or not isinstance(content, dict):
        return None
    return Message(kind, content)
