"""Whether this worker takes tickets. Any reason closes the door; without one it is open.

A closed door leaves tickets in Redis for other workers, instead of taking them and finding
nothing it may do. Celery's consumer belongs to its own thread, so it is asked, not touched.
"""

import logging
import threading
from typing import Any

logger = logging.getLogger(__name__)

DRAINING, REFUSED, UNWELL, STOPPING = "draining", "refused", "unwell", "stopping"


class Door:
    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._reasons: set[str] = set()
        self._lock = threading.RLock()  # a signal may come while its thread holds it
        self._consumer: Any = None

    @property
    def is_open(self) -> bool:
        return not self._reasons

    def use(self, consumer: Any) -> None:
        """Celery's consumer, once it is ready; the same one connects again by itself."""
        with self._lock:
            self._consumer = consumer
            if self._reasons:
                self._ask(consumer.cancel_task_queue)

    def close(self, reason: str) -> None:
        with self._lock:
            if reason in self._reasons:
                return
            was_open = not self._reasons
            self._reasons.add(reason)
            if was_open:
                logger.info("Taking no more jobs: %s.", reason)
                self._ask(lambda queue: self._consumer.cancel_task_queue(queue))

    def open(self, reason: str) -> None:
        """This reason is gone."""
        with self._lock:
            if reason not in self._reasons:
                return
            self._reasons.discard(reason)
            if not self._reasons:
                logger.info("Taking jobs again.")
                self._ask(self._consume)

    def _consume(self, queue: str) -> None:
        # Selected again too, or a consumer that reconnects to the broker would leave it out.
        queues = self._consumer.app.amqp.queues
        queues.select_add(queues[queue])
        self._consumer.add_task_queue(queue)

    def _ask(self, change: Any) -> None:
        if self._consumer is not None:
            self._consumer.hub.call_soon(change, self._queue)
