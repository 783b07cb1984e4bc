"""Kombu's Redis transport, for a worker that outlives whatever lies in its queue.

Celery refuses what it can read and does not know. What it can't even read (no JSON, no
message, a body that is no base64) would end the process, and with it the fleet, one worker
after the other. Here it is dropped and said.
"""

import logging
from typing import Any

from kombu.transport import redis

logger = logging.getLogger(__name__)


class Channel(redis.Channel):
    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (AttributeError, KeyError, TypeError, ValueError):
            logger.exception("Dropped something from the queue that is no message.")
            return True


class Transport(redis.Transport):
    Channel = Channel
