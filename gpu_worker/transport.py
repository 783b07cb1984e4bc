"""Kombu's Redis transport, for a worker that outlives whatever lies in its queue.

Celery refuses what it can read and does not know. What it can't even read (no JSON, no
message, a body that is no base64) would end the process, and with it the fleet, one worker
after the other. Here it is dropped and said.

It also asks nothing of Redis that the user of a fleet may not do (tasks/redis_acl.py): every
refusal would stand in the server's log, where refusals are to mean something.
"""

import logging
from typing import Any

from kombu.transport import redis

logger = logging.getLogger(__name__)


class Channel(redis.Channel):
    def _brpop_read(self, **options: Any) -> Any:
        held = set(self.qos._delivered or ())
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            logger.exception("Dropped something from the queue that is no message.")
            # It may have been counted as taken already: the worker would wait for its end.
            for delivery_tag in set(self.qos._delivered or ()) - held:
                self.qos.ack(delivery_tag)
            return True

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        """Without CLIENT SETINFO, which older servers do not know and no user needs."""
        parameters: dict[str, Any] = super()._connparams(asynchronous)  # type: ignore[misc]
        return parameters | {"driver_info": None}

    def sweep_bindings(self, limit: int = 100) -> int:  # noqa: ARG002
        """What others left behind is tidied by the control worker and by Flower."""
        return 0


class Transport(redis.Transport):
    Channel = Channel
