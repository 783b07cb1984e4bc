"""The network of a chaos run: TCP proxies on loopback that can be cut, stalled, slowed and muted.

A link listens on a port of its own and passes on to one server. All links live in one thread
with one event loop; whoever hurts a link calls from another.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
DELAY_SECONDS = 0.4  # of every chunk, while a link is slow
STOP_SECONDS = 10.0

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Trouble(StrEnum):
    CUT = "cut"  #: connections break, new ones are refused
    STALL = "stall"  #: nothing passes, and nobody is told
    SLOW = "slow"  #: every chunk comes later
    MUTE = "mute"  #: questions arrive, answers get lost


class Link:
    """Only its event loop touches it."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._troubles: Counter[Trouble] = Counter()  # they may overlap
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._server.close()
        self.reset()

    def begin(self, trouble: Trouble) -> None:
        self._troubles[trouble] += 1
        if trouble == Trouble.CUT:
            self.reset()
        elif trouble == Trouble.STALL:
            self._flows.clear()

    def end(self, trouble: Trouble) -> None:
        self._troubles[trouble] -= 1
        if trouble == Trouble.MUTE:
            self.reset()  # what was lost is missing in the middle of a stream
        elif trouble == Trouble.STALL and not self._troubles[trouble]:
            self._flows.set()

    def reset(self) -> None:
        for writer in list(self._writers):
            _break(writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._troubles[Trouble.CUT]:
                return
            await self._flows.wait()
            there, to_there = await asyncio.open_connection(HOST, self._target_port)
            self._writers.add(to_there)
            try:
                await asyncio.gather(
                    self._pass_on(reader, to_there), self._pass_on(there, writer, is_answer=True)
                )
            finally:
                self._writers.discard(to_there)
                to_there.close()
        except OSError:
            return  # nobody listens there, or somebody broke off
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_answer: bool = False,
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self._flows.wait()
            if self._troubles[Trouble.SLOW]:
                await asyncio.sleep(DELAY_SECONDS)
            if is_answer and self._troubles[Trouble.MUTE]:
                continue
            writer.write(chunk)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()


def _break(writer: asyncio.StreamWriter) -> None:
    """At once, and the other side is told so."""
    if not writer.transport.is_closing():
        channel = writer.get_extra_info("socket")
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()


class Links:
    """All links by name, in a thread of their own."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    @property
    def names(self) -> list[str]:
        return sorted(self._links)

    def open(self, name: str, target_port: int) -> int:
        """A new link to a server; the port that it is reached by."""
        link = Link(target_port)
        asyncio.run_coroutine_threadsafe(link.open(), self._loop).result(STOP_SECONDS)
        self._links[name] = link
        return link.port

    def begin(self, name: str, trouble: Trouble) -> None:
        self._do(lambda: self._links[name].begin(trouble))

    def end(self, name: str, trouble: Trouble) -> None:
        self._do(lambda: self._links[name].end(trouble))

    def reset(self, name: str) -> None:
        """Break the connections of this moment."""
        self._do(lambda: self._links[name].reset())

    def _do(self, change: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(change)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(STOP_SECONDS)
        self._do(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()

    async def _shut(self) -> None:
        for link in self._links.values():
            link.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
