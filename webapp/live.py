"""What streams are told: whatever has changed, read from the databases.

News over Redis say where to look (tasks/news.py), and everything that is watched is looked
at every few seconds anyway: news get lost while Redis is away, and nobody tells of those who
merely move up in the queue. A look costs a few statements, however many watch.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from flask import Flask, Response, request
from redis.exceptions import RedisError
from sqlalchemy import select

from models.errors import DATABASE_AWAY
from models.jobs import Job
from tasks import news, queue_view
from tasks.backend import Backend
from webapp.handover import Handover
from webapp.streams import Event, Stream, Streams

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # everything that is watched
OVERVIEW_SECONDS = 1.0  # at the most so often: something changes all the time
GATHER_SECONDS = 0.1  # news that come close together are looked at together
REDIS_REST_SECONDS = 1.0


@dataclass(frozen=True)
class JobTopic:
    tenant_id: UUID
    job_id: UUID


@dataclass(frozen=True)
class Overview:
    """What operators watch: all there is."""


Shape = Callable[[Job, queue_view.Place | None], dict[str, Any]]


class Live:
    def __init__(self, app: Flask, *, job_shape: Shape, overview: Callable[[], Event]) -> None:
        backend: Backend = app.extensions["comfyfleet"]
        self._app, self._backend = app, backend
        self._job_shape, self._overview = job_shape, overview
        self.streams = Streams(backend.settings)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._look_at = 0.0
        self._known: set[Hashable] = set()
        self._pending: set[Hashable] = set()
        self._overview_at = 0.0

    def job_event(self, job: Job, place: queue_view.Place | None) -> Event:
        shape = self._job_shape(job, place)
        return Event(
            id=_job_state(shape),
            data=json.dumps(shape, default=str),
            name="status",
            name_while_same="progress",
            is_last=not job.is_active,
        )

    def answer(self, topic: Hashable, event: Event, *, owner: UUID) -> Response:
        """A stream that begins with this event, unless its client has it already."""
        has = request.headers.get("Last-Event-ID", "")
        if event.is_last and has == event.id:
            return Response(status=204)  # which tells a browser not to come back
        answer = Response(mimetype="text/event-stream")
        answer.headers |= {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return answer
        first = KEEP_BUFFERS_BUSY if has == event.id else event.as_text(has)
        if event.is_last:
            answer.set_data(first)
            return answer
        self.streams.reserve(owner)
        self._start()

        def take_over(connection: Any, is_chunked: bool) -> None:
            self.streams.open(Stream(topic, owner, connection, is_chunked, last_id=event.id))

        def give_up() -> None:
            self.streams.release(owner)

        answer.response = Handover(request.environ, first, take_over, give_up)
        return answer

    def close(self) -> None:
        self._is_closing = True
        self.streams.close()
        if self._thread is not None:
            self._thread.join(2.0)

    def _start(self) -> None:
        """In the process that serves: a thread does not survive a fork."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="live", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        for told in self._news():
            if self._is_closing:
                return
            watched = self.streams.topics()
            self._pending |= self._of_interest(watched, told) & watched
            self._known = watched
            if self._pending:
                looking, self._pending = self._pending, set()
                if Overview() in looking and time.monotonic() < self._overview_at:
                    looking.discard(Overview())
                    self._pending.add(Overview())
                self._look(looking)

    def _news(self) -> Iterator[set[str] | None]:
        """For ever: what was told lately; None when something may have been missed."""
        while True:
            try:
                yield from news.listen(self._backend.settings.redis_url, gather=GATHER_SECONDS)
            except (RedisError, OSError) as error:
                logger.warning("No news: Redis is away (%s). Looking all the same.", error)
            yield None
            time.sleep(REDIS_REST_SECONDS)

    def _of_interest(self, watched: set[Hashable], told: set[str] | None) -> set[Hashable]:
        if told is None or time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            return watched
        # A stream that has just been opened may have missed what was told while it began.
        return (watched - self._known) | {topic for topic in watched if _concerns(topic, told)}

    def _look(self, topics: set[Hashable]) -> None:
        try:
            with self._app.app_context():
                self._look_at_jobs([topic for topic in topics if isinstance(topic, JobTopic)])
                if Overview() in topics:
                    self._tell_operators()
        except DATABASE_AWAY as error:
            logger.warning("Streams wait: a database does not answer (%s).", error)
        except Exception:
            logger.exception("Streams could not be told; the next look tries again.")

    def _tell_operators(self) -> None:
        began = time.monotonic()
        event = self._overview()
        # With hundreds of fleets it costs something: never more than a tenth of the time.
        pause = max(OVERVIEW_SECONDS, 10 * (time.monotonic() - began))
        self._overview_at = time.monotonic() + pause
        if self.streams.is_behind(Overview(), event.id):
            self.streams.tell(Overview(), event)

    def _look_at_jobs(self, topics: Collection[JobTopic]) -> None:
        by_pool: dict[str, list[UUID]] = {}
        for topic in topics:
            pool = self._backend.databases.pool_of(topic.tenant_id)
            by_pool.setdefault(pool, []).append(topic.job_id)
        for pool, job_ids in by_pool.items():
            with self._backend.databases.pool(pool) as session:
                found = list(session.scalars(select(Job).where(Job.id.in_(job_ids))))
            places = queue_view.places(self._backend, found)
            for job in found:
                self._tell_job(job, places.get(job.id))

    def _tell_job(self, job: Job, place: queue_view.Place | None) -> None:
        topic = JobTopic(job.tenant_id, job.id)
        event = self.job_event(job, place)
        if self.streams.is_behind(topic, event.id):
            self.streams.tell(topic, event)


#: Some buffers on the way let nothing through before they have something.
KEEP_BUFFERS_BUSY = b": you have the newest\n\n"


def _job_state(shape: dict[str, Any]) -> str:
    """What makes a job another than it was. Addresses change with every look, and don't."""
    names = ("status", "attempts", "progress", "queue_position", "refunded")
    return ":".join(str(shape[name]) for name in names)


def _concerns(topic: Hashable, told: set[str]) -> bool:
    return str(topic.job_id) in told if isinstance(topic, JobTopic) else bool(told)
