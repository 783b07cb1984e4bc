"""Tickets: Celery messages that say "a job waits for this fleet".

A ticket is a hint, never the truth. Losing one costs a little time (the reconciler rings
again), one too many costs nothing. So nobody waits for the broker: tickets are sent a
moment later, many at once, and when the broker is away they are dropped and that is said.

Celery makes one message for each fleet, and the tickets are copies of it with ids of their
own: making every message anew would cost more than the rest of a submit.
"""

import base64
import json
import logging
import time
from typing import Any
from uuid import UUID, uuid4

from celery import Celery
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tasks.later import Later

logger = logging.getLogger(__name__)

TASK = "gpu_worker.run"
_PATIENCE_SECONDS = 0.3
_REST_SECONDS = 2.0  # after a failure, before the broker is tried again

Ticket = tuple[str, str]  # fleet slug, dispatch id


class Bell:
    """Rings for a fleet's workers. Safe to share between threads and across a fork."""

    def __init__(self, redis_url: str, later: Later) -> None:
        self._later = later
        self._redis = Redis.from_url(
            redis_url,
            socket_timeout=_PATIENCE_SECONDS,
            socket_connect_timeout=_PATIENCE_SECONDS,
            retry=Retry(NoBackoff(), 1),  # once more, for a connection that was idle too long
        )
        self._forms: dict[str, TicketForm] = {}
        self._silent_until = 0.0

    def ring(self, fleet_slug: str, dispatch_id: UUID) -> None:
        """A job waits for this fleet. Returns at once, whatever the broker does."""
        self._later.add(self._send, (fleet_slug, str(dispatch_id)))

    def _send(self, tickets: list[Ticket]) -> None:
        if time.monotonic() < self._silent_until:
            return
        by_fleet: dict[str, list[str]] = {}
        for fleet_slug, dispatch_id in tickets:
            if fleet_slug not in self._forms:
                self._forms[fleet_slug] = TicketForm(fleet_slug)
            by_fleet.setdefault(fleet_slug, []).append(self._forms[fleet_slug].fill(dispatch_id))
        try:
            for fleet_slug, messages in by_fleet.items():
                self._redis.lpush(fleet_slug, *messages)
        except RedisError as error:
            self._silent_until = time.monotonic() + _REST_SECONDS
            logger.warning("Tickets were not sent: the broker is away (%s).", error)

    def waiting(self, fleet_slug: str) -> int | None:
        """Tickets that nobody has taken yet; None when the broker is away."""
        try:
            return int(self._redis.llen(fleet_slug))  # type: ignore[arg-type]
        except RedisError as error:
            logger.warning("Tickets can't be counted: the broker is away (%s).", error)
            return None

    def close(self) -> None:
        self._redis.close()


class TicketForm:
    """A message as this version of Celery makes it, with blanks for the ids.

    Celery is asked to send one through a broker in memory; what it put there is, but for
    the ids, what it would put into Redis.
    """

    def __init__(self, fleet_slug: str) -> None:
        celery = Celery("comfyfleet", broker="memory://localhost", set_as_current=False)
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
