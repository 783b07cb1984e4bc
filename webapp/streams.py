"""Event streams: answers that stay open, all of a web process held by one thread of its own.

A stream watches a topic. Every event is the whole truth about its topic at a moment, so
nothing has to be kept for a client that was away, and one that reads slowly is given the
newest and not what it missed. What is told, and when, is decided in live.py.

Streams are bounded: in number, in number for each user, in age (a client comes back, and is
asked again who it is), and in what waits to be sent.
"""

import logging
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from models.errors import TooManyStreams
from models.settings import Settings
from webapp.http_figures import STREAMS_OPEN

logger = logging.getLogger(__name__)

STALL_SECONDS = 60.0  # a client that takes nothing for so long has gone
KEEP_ALIVE = b":\n\n"  # a comment, which clients skip
_TICK_SECONDS = 1.0


@dataclass(frozen=True)
class Event:
    """`id` names the state it tells of; what stands before its first colon names it in short."""

    id: str
    data: str  # one line
    name: str  # of the event, when that short name is another than the client's last
    name_while_same: str
    is_last: bool = False

    def as_text(self, last_id: str) -> bytes:
        is_same = self.id.partition(":")[0] == last_id.partition(":")[0]
        name = self.name_while_same if is_same else self.name
        return f"id: {self.id}\nevent: {name}\ndata: {self.data}\n\n".encode()


@dataclass(eq=False)
class Stream:
    topic: Hashable
    owner: UUID
    connection: socket.socket
    is_chunked: bool
    last_id: str  # of the newest event that was sent, or that its client said it has
    opened_at: float = field(default_factory=time.monotonic)
    sent_at: float = field(default_factory=time.monotonic)
    unsent: bytearray = field(default_factory=bytearray)
    newest: Event | None = None  # came while something was still unsent
    is_ending: bool = False

    def put(self, text: bytes) -> None:
        self.unsent += b"%x\r\n%s\r\n" % (len(text), text) if self.is_chunked else text

    def put_event(self, event: Event) -> None:
        self.put(event.as_text(self.last_id))
        self.last_id, self.newest = event.id, None
        if event.is_last:
            self.put_end()

    def put_end(self) -> None:
        if self.is_chunked and not self.is_ending:
            self.unsent += b"0\r\n\r\n"
        self.is_ending = True


class Streams:
    """All open streams of this process. Its thread begins with the first of them."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_streams
        self._most_of_user = settings.max_user_streams
        self._longest_seconds = settings.stream_seconds
        self._keep_alive_seconds = settings.stream_keep_alive_seconds
        self._lock = threading.Lock()
        self._held: Counter[UUID] = Counter()
        self._by_topic: dict[Hashable, set[Stream]] = {}
        self._orders: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closing = False

    @property
    def count(self) -> int:
        return self._held.total()

    def reserve(self, owner: UUID) -> None:
        """A place for one more stream; `release` gives it back, and so does the stream's end."""
        with self._lock:
            if self._held[owner] >= self._most_of_user:
                raise TooManyStreams(
                    f"You have {self._held[owner]} open already. Close one.", retry_after_seconds=5
                )
            if self._held.total() >= self._most:
                raise TooManyStreams(
                    "All streams are taken at the moment. Ask for the job itself now and then.",
                    retry_after_seconds=10,
                )
            self._held[owner] += 1
        STREAMS_OPEN.inc()

    def release(self, owner: UUID) -> None:
        with self._lock:
            self._held[owner] -= 1
            if self._held[owner] <= 0:
                del self._held[owner]
        STREAMS_OPEN.dec()

    def open(self, stream: Stream) -> None:
        """Take over a connection whose answer has begun; its place is reserved."""
        stream.connection.setblocking(False)
        with self._lock:
            if self._thread is None and not self._is_closing:
                self._wake, self._waker = socket.socketpair()
                self._wake.setblocking(False)
                self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
                self._thread.start()
        self._order(lambda: self._begin(stream))

    def topics(self) -> set[Hashable]:
        with self._lock:
            return set(self._by_topic)

    def is_behind(self, topic: Hashable, event_id: str) -> bool:
        """Whether somebody who watches this does not know that state yet."""
        with self._lock:
            return any(s.last_id != event_id for s in self._by_topic.get(topic, ()))

    def tell(self, topic: Hashable, event: Event) -> None:
        self._order(lambda: self._tell(topic, event))

    def close(self) -> None:
        self._is_closing = True
        if self._thread is not None:
            self._order(lambda: None)
            self._thread.join(2.0)

    def _order(self, order: Callable[[], None]) -> None:
        """Have the thread do something: only it touches connections."""
        self._orders.append(order)
        with suppress(OSError):  # full: it is about to look anyway
            self._waker.send(b".")

    def _run(self) -> None:
        with selectors.DefaultSelector() as self._selector, self._wake, self._waker:
            self._selector.register(self._wake, selectors.EVENT_READ)
            tend_at = time.monotonic()
            while not self._is_closing:
                for key, ready in self._selector.select(_TICK_SECONDS):
                    self._serve(key.data, ready)
                while self._orders:
                    self._orders.popleft()()
                if time.monotonic() >= tend_at:
                    tend_at = time.monotonic() + _TICK_SECONDS
                    self._tend()
            for stream in self._all():
                stream.put_end()
                self._flush(stream)
                self._drop(stream)

    def _all(self) -> list[Stream]:
        with self._lock:
            return [stream for watching in self._by_topic.values() for stream in watching]

    def _begin(self, stream: Stream) -> None:
        with self._lock:
            self._by_topic.setdefault(stream.topic, set()).add(stream)
        self._selector.register(stream.connection, selectors.EVENT_READ, stream)

    def _serve(self, stream: Stream | None, ready: int) -> None:
        if stream is None:
            with suppress(BlockingIOError):
                self._wake.recv(4096)
            return
        if ready & selectors.EVENT_READ and not self._is_there(stream):
            self._drop(stream)
        elif ready & selectors.EVENT_WRITE:
            self._flush(stream)

    def _is_there(self, stream: Stream) -> bool:
        """Clients of a stream have nothing to say; an end of input means that they left."""
        try:
            return bool(stream.connection.recv(4096))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _tell(self, topic: Hashable, event: Event) -> None:
        with self._lock:
            watching = list(self._by_topic.get(topic, ()))
        for stream in watching:
            if stream.is_ending or stream.last_id == event.id:
                continue
            if stream.unsent:
                stream.newest = event
            else:
                stream.put_event(event)
                self._flush(stream)

    def _tend(self) -> None:
        now = time.monotonic()
        for stream in self._all():
            if stream.unsent:
                if now - stream.sent_at > STALL_SECONDS:
                    self._drop(stream)
            elif now - stream.opened_at > self._longest_seconds:
                stream.put_end()
                self._flush(stream)
            elif now - stream.sent_at > self._keep_alive_seconds:
                stream.put(KEEP_ALIVE)
                self._flush(stream)

    def _flush(self, stream: Stream) -> None:
        try:
            while stream.unsent:
                sent = stream.connection.send(stream.unsent)
                del stream.unsent[:sent]
                stream.sent_at = time.monotonic()
                if not stream.unsent and stream.newest is not None:
                    stream.put_event(stream.newest)
        except BlockingIOError:
            wanted = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(stream.connection, wanted, stream)
            return
        except OSError:
            self._drop(stream)
            return
        if stream.is_ending:
            self._drop(stream)
        else:
            self._selector.modify(stream.connection, selectors.EVENT_READ, stream)

    def _drop(self, stream: Stream) -> None:
        with self._lock:
            watching = self._by_topic.get(stream.topic, set())
            if stream not in watching:
                return
            watching.discard(stream)
            if not watching:
                del self._by_topic[stream.topic]
        with suppress(KeyError, ValueError):  # closed before it began
            self._selector.unregister(stream.connection)
        stream.connection.close()
        self.release(stream.owner)
