"""Tickets: Celery messages that say "a job waits for this fleet".

A ticket is a hint, never the truth. Losing one costs a little time (the reconciler rings
again), one too many costs nothing. So nobody waits for the broker: a thread of its own
sends what was rung, as much at once as has gathered, and when the broker is away it drops
the tickets, says so, and tries again with the next.

Celery makes one message for each fleet, and the tickets are copies of it with ids of their
own: making every message anew would cost more than the rest of a submit.
"""

import base64
import json
import logging
import os
import queue
import threading
import time
import weakref
from typing import Any
from uuid import UUID, uuid4

from celery import Celery
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

logger = logging.getLogger(__name__)

TASK = "gpu_worker.run"
_PATIENCE_SECONDS = 0.3
_REST_SECONDS = 2.0  # after a failure, before the broker is tried again
_AT_ONCE = 500
_MOST_WAITING = 10_000

Ticket = tuple[str, str]  # fleet slug, dispatch id


class Bell:
    """Rings for a fleet's workers. Safe to share between threads and across a fork."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._begin()
        _every_bell.add(self)

    def _begin(self) -> None:
        """Also in a forked child: threads and sockets stay with the parent."""
        self._redis = Redis.from_url(
            self._redis_url,
            socket_timeout=_PATIENCE_SECONDS,
            socket_connect_timeout=_PATIENCE_SECONDS,
            retry=Retry(NoBackoff(), 1),  # once more, for a connection that was idle too long
        )
        self._forms: dict[str, TicketForm] = {}
        self._rung: queue.Queue[Ticket | None] = queue.Queue(_MOST_WAITING)
        self._ringer: threading.Thread | None = None
        self._lock = threading.Lock()

    def ring(self, fleet_slug: str, dispatch_id: UUID) -> None:
        """A job waits for this fleet. Returns at once, whatever the broker does."""
        try:
            self._rung.put_nowait((fleet_slug, str(dispatch_id)))
        except queue.Full:
            logger.warning("No ticket for %s: too many are waiting to be sent.", fleet_slug)
            return
        if self._ringer is None:
            self._start_ringer()

    def _start_ringer(self) -> None:
        with self._lock:
            if self._ringer is None:
                self._ringer = threading.Thread(target=self._run, name="bell", daemon=True)
                self._ringer.start()

    def _run(self) -> None:
        silent_until = 0.0
        while True:
            gathered = self._gathered()
            if time.monotonic() >= silent_until:
                try:
                    self._send([ticket for ticket in gathered if ticket])
                except (RedisError, OSError) as error:
                    silent_until = time.monotonic() + _REST_SECONDS
                    logger.warning("Tickets were not sent: the broker is away (%s).", error)
            if None in gathered:
                return

    def _gathered(self) -> list[Ticket | None]:
        """Wait for one, and take all that have come meanwhile."""
        tickets = [self._rung.get()]
        while len(tickets) < _AT_ONCE:
            try:
                tickets.append(self._rung.get_nowait())
            except queue.Empty:
                break
        return tickets

    def _send(self, tickets: list[Ticket]) -> None:
        by_fleet: dict[str, list[str]] = {}
        for fleet_slug, dispatch_id in tickets:
            if fleet_slug not in self._forms:
                self._forms[fleet_slug] = TicketForm(fleet_slug)
            by_fleet.setdefault(fleet_slug, []).append(self._forms[fleet_slug].fill(dispatch_id))
        for fleet_slug, messages in by_fleet.items():
            self._redis.lpush(fleet_slug, *messages)

    def close(self) -> None:
        """Send what was rung, and stop. Bounded: a broker that is away is not waited for."""
        if self._ringer is not None:
            self._rung.put(None)
            self._ringer.join(2 * _REST_SECONDS)
            self._ringer = None
        self._redis.close()


class TicketForm:
    """A message as this version of Celery makes it, with blanks for the ids.

    Celery is asked to send one through a broker in memory; what it put there is, but for
    the ids, what it would put into Redis.
    """

    def __init__(self, fleet_slug: str) -> None:
        celery = Celery("comfyfleet", broker="memory://", set_as_current=False)
        celery.conf.update(task_serializer="json", task_ignore_result=True)
        celery.send_task(TASK, args=["DISPATCH"], queue=fleet_slug, task_id="TICKET", retry=False)
        with celery.connection_for_read() as connection:
            channel: Any = connection.default_channel
            message: dict[str, Any] = channel._get(fleet_slug)
        celery.close()
        self._body = base64.b64decode(message["body"]).decode()
        message["body"] = "BODY"
        message["properties"]["delivery_tag"] = "DELIVERY"
        self._form = json.dumps(message)

    def fill(self, dispatch_id: str) -> str:
        body = self._body.replace("DISPATCH", dispatch_id)
        return (
            self._form.replace("BODY", base64.b64encode(body.encode()).decode())
            .replace("DISPATCH", dispatch_id)
            .replace("TICKET", str(uuid4()))
            .replace("DELIVERY", str(uuid4()))
        )


_every_bell: "weakref.WeakSet[Bell]" = weakref.WeakSet()


def _after_fork() -> None:
    for bell in _every_bell:
        bell._begin()


os.register_at_fork(after_in_child=_after_fork)
