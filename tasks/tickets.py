"""Tickets: Celery messages that say "a job waits for this fleet".

A ticket is a hint, never the truth. Losing one costs a little time (the reconciler rings
again), one too many costs nothing, so a broker that is down must not make anybody wait:
publishing is tried once, with short timeouts, and not at all for a moment after a failure.
"""

import logging
import time
from uuid import UUID

from celery import Celery
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)

TASK = "gpu_worker.run"
_PATIENCE_SECONDS = 0.3
_REST_SECONDS = 2.0  # after a failure, before the broker is tried again


class Bell:
    """Rings for a fleet's workers. Safe to share between threads and across a fork."""

    def __init__(self, redis_url: str) -> None:
        self._celery = _impatient_celery(redis_url)
        self._silent_until = 0.0

    def ring(self, fleet_slug: str, *, dispatch_id: UUID | None = None) -> bool:
        """Publish a ticket for a fleet. False, and no exception, when the broker is away."""
        if time.monotonic() < self._silent_until:
            return False
        args = [str(dispatch_id)] if dispatch_id else []
        try:
            self._celery.send_task(TASK, args=args, queue=fleet_slug, retry=False)
        except (OperationalError, OSError) as error:
            self._silent_until = time.monotonic() + _REST_SECONDS
            logger.warning("No ticket for %s: the broker does not answer (%s).", fleet_slug, error)
            return False
        return True

    def close(self) -> None:
        self._celery.close()


def _impatient_celery(redis_url: str) -> Celery:
    celery = Celery("comfyfleet", broker=redis_url, set_as_current=False)
    celery.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_publish_retry=False,
        task_create_missing_queues=True,
        broker_connection_timeout=_PATIENCE_SECONDS,
        broker_transport_options={
            "socket_timeout": _PATIENCE_SECONDS,
            "socket_connect_timeout": _PATIENCE_SECONDS,
            # `retry=False` alone does not cover connecting.
            "max_retries": 0,
            "interval_start": 0,
            "interval_step": 0,
            "interval_max": 0,
        },
    )
    return celery
