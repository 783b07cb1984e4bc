"""How a worker ends: one way for a Spot notice, scale-in, SIGTERM and `celery control shutdown`.

It takes no more tickets, hands its job back and interrupts it, leaves the fleet, and is gone.
All of that is begun here, once, and bounded: whatever hangs (a stalled Redis holds Celery's
main thread for minutes), the process ends. It leaves only after the job was handed back, or
when there is no more time for that: who has left is not listened to any more.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 1.5  # of the time to stop, kept for leaving the fleet


class Stopping:
    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._leave_seconds = min(LEAVE_SECONDS, seconds / 2)
        self._leave_at = 0.0  # at the latest
        self._lock = threading.RLock()  # a signal may come while its thread holds it
        self._leaves = threading.Event()
        self._left = threading.Event()
        self._steps: list[Callable[[], None]] = []
        self._hand_back: Callable[[float], object] = lambda _seconds: None
        self._leave: Callable[[], None] = lambda: None
        self.began = threading.Event()
        self.reason = "shutdown"

    def on_begin(self, step: Callable[[], None]) -> None:
        """Called, in order, the moment it begins. Must return at once."""
        self._steps.append(step)

    def on_leave(
        self,
        leave: Callable[[], None],
        *,
        after: Callable[[float], object] = lambda _seconds: None,
    ) -> None:
        """Called once, when `after` has returned, which is told how long it may take."""
        self._leave, self._hand_back = leave, after

    def begin(self, reason: str | None = None) -> None:
        with self._lock:
            if self.began.is_set():
                return
            self.reason = reason or self.reason
            self._leave_at = time.monotonic() + self._seconds - self._leave_seconds
            self.began.set()
        logger.warning("Stopping: %s.", self.reason)
        threading.Thread(target=self._make_sure, name="stopping", daemon=True).start()
        for step in self._steps:
            try:
                step()
            except Exception:  # the next one has its own work to do
                logger.exception("A step of stopping went wrong.")

    def leave(self) -> None:
        """Returns when it is done, whoever did it."""
        with self._lock:
            is_first = not self._leaves.is_set()
            self._leaves.set()
        if not is_first:
            self._left.wait(max(self._leave_at - time.monotonic(), 0) + self._leave_seconds)
            return
        try:
            self._hand_back(max(self._leave_at - time.monotonic(), 0))
            self._leave()
        finally:
            self._left.set()

    def _make_sure(self) -> None:
        """The process is gone in time. What was handed back is not undone by this."""
        self._leaves.wait(max(self._leave_at - time.monotonic(), 0))
        leaving = threading.Thread(target=self.leave, daemon=True)
        leaving.start()
        time.sleep(max(self._leave_at + self._leave_seconds - time.monotonic(), 0))
        logger.error("Something hangs; the worker ends all the same.")
        os._exit(0)
