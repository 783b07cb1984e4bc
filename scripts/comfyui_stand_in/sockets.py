"""The websockets of the clients, and what is sent to them.

A message goes to one client id, or to all when it has none. The order is that in which
messages were handed over, from whichever thread.
"""

import asyncio
import json
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from aiohttp import WSMsgType, web
from PIL import Image

_PREVIEW, _PREVIEW_WITH_METADATA = 1, 4
_PNG = 2


@dataclass
class Socket:
    request: web.Request
    stream: web.WebSocketResponse
    wants_metadata: bool = False


class Sockets:
    def __init__(self, features: dict[str, Any]) -> None:
        self.features = features
        self.queue_status: Callable[[], dict[str, Any]] = dict
        self.open: dict[str, Socket] = {}
        self.client_id: Any = None  # of the prompt that runs, or that ran last
        self.current_node: str | None = None
        self.refuses = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outgoing: asyncio.Queue[tuple[str | bytes, Any]] = asyncio.Queue()

    def send(self, event: str, message: dict[str, Any], client_id: Any = None) -> None:
        """From any thread. What is sent is fixed now, not when its turn comes."""
        self._enqueue(json.dumps({"type": event, "data": message}), client_id)

    def send_preview(self, image: Image.Image, metadata: dict[str, Any] | None) -> None:
        with BytesIO() as file:
            image.save(file, format="PNG", compress_level=1)
            png = file.getvalue()
        if metadata is None:
            frame = struct.pack(">II", _PREVIEW, _PNG) + png
        else:
            told = json.dumps({**metadata, "image_type": "image/png"}).encode()
            frame = struct.pack(">II", _PREVIEW_WITH_METADATA, len(told)) + told + png
        self._enqueue(frame, self.client_id)

    def wants_metadata(self) -> bool:
        socket = self.open.get(self.client_id) if isinstance(self.client_id, str) else None
        return socket is not None and socket.wants_metadata

    def send_status(self) -> None:
        self.send("status", {"status": self.queue_status()})

    def _enqueue(self, message: str | bytes, client_id: Any) -> None:
        if self._loop:
            self._loop.call_soon_threadsafe(self._outgoing.put_nowait, (message, client_id))

    async def publish(self) -> None:
        """Runs for ever. A client id that can't be looked up ends it, and so the process."""
        self._loop = asyncio.get_running_loop()
        while True:
            message, client_id = await self._outgoing.get()
            if client_id is None:
                receivers = list(self.open.values())
            else:
                receivers = [self.open[client_id]] if client_id in self.open else []
            for socket in receivers:
                await _deliver(socket, message)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if self.refuses:
            return web.Response(status=503)
        stream = web.WebSocketResponse(max_msg_size=0)
        await stream.prepare(request)
        client_id = request.query.get("clientId") or uuid.uuid4().hex
        socket = self.open[client_id] = Socket(request, stream)
        try:
            await _deliver_event(
                socket, "status", {"status": self.queue_status(), "sid": client_id}
            )
            if client_id == self.client_id and self.current_node is not None:
                await _deliver_event(socket, "executing", {"node": self.current_node})
            await self._listen(socket)
        finally:
            # Also when another socket has taken the id since: that one hears nothing any more.
            self.open.pop(client_id, None)
        return stream

    async def _listen(self, socket: Socket) -> None:
        is_first = True
        async for message in socket.stream:
            if message.type is not WSMsgType.TEXT:
                continue
            told = _flags(message.data) if is_first else None
            is_first = False
            if told is not None:
                socket.wants_metadata = told.get("supports_preview_metadata") is True
                await _deliver_event(socket, "feature_flags", self.features)

    def drop_all(self) -> None:
        """Cut the connections without a goodbye."""
        for socket in self.open.values():
            if socket.request.transport:
                socket.request.transport.abort()


def _flags(text: str) -> dict[str, Any] | None:
    try:
        message = json.loads(text)
    except ValueError:
        return None
    if not isinstance(message, dict) or message.get("type") != "feature_flags":
        return None
    flags = message.get("data", {})
    return flags if isinstance(flags, dict) else None


async def _deliver_event(socket: Socket, event: str, message: dict[str, Any]) -> None:
    await _deliver(socket, json.dumps({"type": event, "data": message}))


async def _deliver(socket: Socket, message: str | bytes) -> None:
    try:
        if isinstance(message, str):
            await socket.stream.send_str(message)
        else:
            await socket.stream.send_bytes(message)
    except (ConnectionError, RuntimeError):
        return  # the client has left; its own coroutine takes it out of the list
