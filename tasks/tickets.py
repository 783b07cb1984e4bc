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
import ssl
import time
from typing import Any
from uuid import UUID, uuid4

from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tasks.later import Later

logger = logging.getLogger(__name__)

TASK = "gpu_worker.run"
CONTROL_QUEUE = "control"
CALL_COURIER = "tasks.call_courier"
_PATIENCE_SECONDS = 0.3
_REST_SECONDS = 2.0  # after a failure, before the broker is tried again

Ticket = tuple[str, str, str]  # fleet slug, dispatch id, traceparent


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
        self._redis_url = redis_url
        self._celery: Celery | None = None
        self._forms: dict[str, TicketForm] = {}
        self._silent_until = 0.0

    def ring(self, fleet_slug: str, dispatch_id: UUID, traceparent: str | None = None) -> None:
        """A job waits for this fleet. Returns at once, whatever the broker does."""
        self._later.add(self._send, (fleet_slug, str(dispatch_id), traceparent or ""))

    def nudge(self, fleet_slug: str, worker_id: str) -> None:
        """Something has changed that this worker should ask about now. A hint, like a ticket."""
        self._later.add(self._nudge, f"gpu@{fleet_slug}.{worker_id}")

    def call_courier(self) -> None:
        """A webhook is due now. A hint, like a ticket: it would be found a little later."""
        self._later.add(self._call, CALL_COURIER)

    def _call(self, tasks: list[str]) -> None:
        if time.monotonic() < self._silent_until:
            return
        try:
            for task in set(tasks):
                self._app().send_task(task, queue=CONTROL_QUEUE, expires=60, retry=False)
        except (RedisError, OperationalError, OSError) as error:
            self._silent_until = time.monotonic() + _REST_SECONDS
            logger.warning("The courier was not called: the broker is away (%s).", error)

    def _nudge(self, nodes: list[str]) -> None:
        try:
            self._app().control.broadcast("nudge", destination=sorted(set(nodes)))
        except (RedisError, OperationalError, OSError) as error:
            logger.warning("Workers were not nudged: the broker is away (%s).", error)

    def _app(self) -> Celery:
        """Celery with the patience of a web process."""
        if self._celery is None:
            self._celery = Celery("comfyfleet", broker=self._redis_url, set_as_current=False)
            self._celery.conf.update(
                broker_connection_timeout=_PATIENCE_SECONDS,
                broker_transport_options={
                    "socket_timeout": _PATIENCE_SECONDS,
                    "socket_connect_timeout": _PATIENCE_SECONDS,
                    "max_retries": 0,
                    "interval_start": 0,
                    "interval_step": 0,
                    "interval_max": 0,
                },
            )
            if self._redis_url.startswith("rediss:"):  # Kombu alone would trust anybody
                self._celery.conf.broker_use_ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
        return self._celery

    def _send(self, tickets: list[Ticket]) -> None:
        if time.monotonic() < self._silent_until:
            return
        by_fleet: dict[str, list[str]] = {}
        for fleet_slug, *names in tickets:
            if fleet_slug not in self._forms:
                self._forms[fleet_slug] = TicketForm(fleet_slug)
            by_fleet.setdefault(fleet_slug, []).append(self._forms[fleet_slug].fill(*names))
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
        if self._celery is not None:
            self._celery.close()


class TicketForm:
    """A message as this version of Celery makes it, with blanks for the ids.

    Celery is asked to send one through a broker in memory; what it put there is, but for
    the ids, what it would put into Redis.
    """

    def __init__(self, fleet_slug: str) -> None:
        celery = Celery("comfyfleet", broker="memory://localhost", set_as_current=False)
        celery.conf.update(task_serializer="json", task_ignore_result=True)
        celery.send_task(
            TASK,
            args=["DISPATCH"],
            queue=fleet_slug,
            task_id="TICKET",
            headers={"traceparent": "TRACE"},
            retry=False,
        )
        with celery.connection_for_read() as connection:
            channel: Any = connection.default_channel
            message: dict[str, Any] = channel._get(fleet_slug)
        celery.close()
        self._body = base64.b64decode(message["body"]).decode()
        message["body"] = "BODY"
        message["properties"]["delivery_tag"] = "DELIVERY"
        self._form = json.dumps(message)

    def fill(self, dispatch_id: str, traceparent: str) -> str:
        body = self._body.replace("DISPATCH", dispatch_id)
        return (
            self._form.replace("BODY", base64.b64encode(body.encode()).decode())
            .replace("DISPATCH", dispatch_id)
            .replace("TRACE", traceparent)
            .replace("TICKET", str(uuid4()))
            .replace("DELIVERY", str(uuid4()))
        )
