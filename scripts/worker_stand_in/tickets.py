"""Tickets as a Celery worker takes them, by the same commands and as many connections.

    idle      BRPOP on the fleet's list, again and again
    a ticket  noted as unacknowledged, events told, forgotten when its work is done
    always    a heartbeat event every two seconds

What is left out: the two connections that Celery keeps and hardly uses stay silent, and nobody
looks for tickets that others dropped.
"""

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlsplit

CONNECTIONS = 6  # of a Celery worker without gossip and mingle
_SILENT = CONNECTIONS - 4
_POLL_SECONDS = 1.0
EVENT_SECONDS = 2.0
_EVENT = json.dumps({"hostname": "gpu@fleet.worker", "clock": 1, "pid": 1, "padding": "x" * 300})


class Deaf(asyncio.Protocol):
    """A connection whose answers nobody reads."""


class Tickets:
    def __init__(self, redis_url: str, queue: str, *, pace: float) -> None:
        parts = urlsplit(redis_url)
        self._host, self._port = parts.hostname or "", parts.port or 6379
        self._queue, self._seconds = queue, _POLL_SECONDS / pace

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._blocked = await asyncio.open_connection(self._host, self._port)
        self._talk = await asyncio.open_connection(self._host, self._port)
        self._deaf = [
            (await loop.create_connection(Deaf, self._host, self._port))[0]
            for _ in range(2 + _SILENT)
        ]
        self._events, control = self._deaf[:2]
        control.write(_spelled("PSUBSCRIBE", "/0.celery.pidbox"))

    async def take(self) -> str | None:
        """A ticket's tag, or None if there was none for a second."""
        reader, writer = self._blocked
        writer.write(_spelled("BRPOP", self._queue, str(self._seconds)))
        popped = await _reply(reader)
        if popped is None:
            return None
        tag = str(json.loads(popped[1])["properties"]["delivery_tag"])
        unacked = json.dumps([popped[1].decode(), "", self._queue])
        await self._ask(
            ["ZADD", f"{self._queue}.unacked_index", str(time.time()), tag],
            ["HSET", f"{self._queue}.unacked", tag, unacked],
        )
        self._tell("task.received")
        self._tell("task.started")
        return tag

    async def acknowledge(self, tag: str) -> None:
        self._tell("task.succeeded")
        await self._ask(
            ["ZREM", f"{self._queue}.unacked_index", tag], ["HDEL", f"{self._queue}.unacked", tag]
        )

    def beat(self) -> None:
        self._tell("worker.heartbeat")

    def _tell(self, event: str) -> None:
        self._events.write(_spelled("PUBLISH", f"/0.celeryev/{event}", _EVENT))

    async def _ask(self, *commands: list[str]) -> None:
        reader, writer = self._talk
        together = [["MULTI"], *commands, ["EXEC"]]
        writer.write(b"".join(_spelled(*command) for command in together))
        for _ in together:
            await _reply(reader)

    def close(self) -> None:
        for _, writer in (self._blocked, self._talk):
            writer.close()
        for transport in self._deaf:
            transport.close()


def _spelled(*words: str) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        encoded = word.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(encoded), encoded))
    return b"".join(parts)


async def _reply(reader: asyncio.StreamReader) -> Any:
    line = (await reader.readuntil(b"\r\n"))[:-2]
    kind, rest = line[:1], line[1:]
    if kind == b"-":
        raise RuntimeError(f"Redis refused: {rest.decode()}")
    if kind == b"$" and int(rest) >= 0:
        return (await reader.readexactly(int(rest) + 2))[:-2]
    if kind == b"*" and int(rest) >= 0:
        return [await _reply(reader) for _ in range(int(rest))]
    return None if kind in (b"$", b"*") else rest
