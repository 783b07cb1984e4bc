"""Pauses between tries, longer and longer, for as long as trying again makes sense.

The seconds count from the first pause, so a first try that took long takes nothing away.
"""

import threading
import time

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0


class Insistence:
    def __init__(self, *, seconds: float, stop: threading.Event) -> None:
        self._seconds = seconds
        self._stop = stop
        self._until: float | None = None
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def pause(self) -> bool:
        """Wait before another try. False, at once: it was stopped, or has lasted long enough."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        if now >= self._until:
            return False
        stopped = self._stop.wait(min(self._pause_seconds, self._until - now))
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        return not stopped
