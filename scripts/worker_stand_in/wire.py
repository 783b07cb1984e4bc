"""HTTP as gpu_worker/wire.py speaks it, with coroutines in the place of threads.

Every caller keeps a connection of its own, with the patience of a worker, and every call is
counted. What goes wrong on the way is Unreachable, as it is for a worker.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from scripts.worker_stand_in.tally import Tally

CONNECT_SECONDS, READ_SECONDS = 3.0, 15.0


class Unreachable(Exception):
    """No answer, or one that a worker does not take for one."""


class Answer:
    def __init__(self, status: int, body: bytes) -> None:
        self.status, self._body = status, body

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._body) if self._body else {}
        return found


class Wire:
    """One connection, kept. Not to be used by two callers at once."""

    def __init__(self, url: str, tally: Tally, *, token: str = "") -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._tally = tally
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.token = token

    async def post(
        self,
        call: str,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        own = {"Content-Type": "application/json", **(headers or {})}
        if self.token:
            own["Authorization"] = f"Bearer {self.token}"
        return await self.send(call, "POST", path, own, json.dumps(body).encode())

    async def send(
        self, call: str, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """`call` is the name under which it is counted."""
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(READ_SECONDS):
                answer = await self._exchange(method, path, headers, body)
        except (OSError, EOFError, ValueError) as error:
            self.close()  # an answer to this must not be taken for one to the next
            self._tally.failed(call, type(error).__name__)
            raise Unreachable(f"{call}: {type(error).__name__}") from error
        self._tally.answered(call, answer.status, time.perf_counter() - begin)
        if answer.status >= 500 or answer.status == 429:
            raise Unreachable(f"{call}: {answer.status}")
        return answer

    async def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        reader, writer = await self._connection()
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}:{self._port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        content = await reader.readexactly(int(length)) if length else b""
        if b"connection: close" in head:
            self.close()
        return Answer(int(head[9:12]), content)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and self._streams[0].at_eof():
            self.close()  # by the server: it was idle for too long
        if self._streams is None:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._streams = await asyncio.open_connection(self._host, self._port)
        return self._streams

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
