"""News: hints over Redis that something has changed, for those who show it live.

A hint is never the truth: whoever hears one reads the row. Losing one costs a little time,
because everything that is watched is looked at now and then anyway. So nobody waits for
Redis: hints are sent a moment later, many in one message, and dropped while it is away.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from uuid import UUID

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tasks.later import Later

logger = logging.getLogger(__name__)

CHANNEL = "comfyfleet:news"
ANYTHING = ""  # something that is no job: a worker came, a dead letter was looked at
_PATIENCE_SECONDS = 0.3
_QUIET_SECONDS = 0.5
_REST_SECONDS = 2.0  # after a failure, before Redis is tried again


class News:
    """Tells what has changed. Safe to share between threads and across a fork."""

    def __init__(self, redis_url: str, later: Later) -> None:
        self._later = later
        self._redis = Redis.from_url(
            redis_url,
            socket_timeout=_PATIENCE_SECONDS,
            socket_connect_timeout=_PATIENCE_SECONDS,
            retry=Retry(NoBackoff(), 1),  # once more, for a connection that was idle too long
        )
        self._silent_until = 0.0

    def tell(self, job_id: UUID) -> None:
        """This job has changed, or where it stands. Returns at once, whatever Redis does."""
        self._later.add(self._send, str(job_id))

    def tell_all(self, job_ids: Iterable[UUID]) -> None:
        for job_id in job_ids:
            self.tell(job_id)

    def tell_operators(self) -> None:
        """Something that is no job has changed."""
        self._later.add(self._send, ANYTHING)

    def _send(self, hints: list[str]) -> None:
        if time.monotonic() < self._silent_until:
            return
        try:
            self._redis.publish(CHANNEL, " ".join(dict.fromkeys(hints)))
        except RedisError as error:
            self._silent_until = time.monotonic() + _REST_SECONDS
            logger.warning("News were not told: Redis is away (%s).", error)

    def close(self) -> None:
        self._redis.close()


def listen(redis_url: str, *, gather: float) -> Iterator[set[str] | None]:
    """Ids of jobs that have changed, gathered for a moment; an empty set when it is quiet.

    The first answer is None: what was told before may have been missed. Raises when Redis
    goes away.
    """
    with (
        Redis.from_url(redis_url, socket_connect_timeout=2, socket_timeout=5) as redis,
        redis.pubsub() as subscribed,
    ):
        subscribed.subscribe(CHANNEL)
        told: set[str] = set()
        until = time.monotonic() + _QUIET_SECONDS
        while True:
            message = subscribed.get_message(timeout=max(until - time.monotonic(), 0))
            if message is not None and message["type"] == "subscribe":
                yield None
            if message is not None and message["type"] == "message":
                until = until if told else time.monotonic() + gather
                told.update(message["data"].decode(errors="replace").split(" "))
            if time.monotonic() >= until:
                yield told
                told, until = set(), time.monotonic() + _QUIET_SECONDS
