"""How long a run may go on: until somebody stops it, or its deadline.

Everything in a run that takes time asks here again and again, so both are noticed soon.
"""

import threading
import time

from gpu_worker.provider import JobFailed, Stopped


class Patience:
    def __init__(self, *, stop: threading.Event, deadline_seconds: float) -> None:
        self.stop = stop
        self.deadline_seconds = deadline_seconds
        self.deadline = time.monotonic() + deadline_seconds

    def check(self) -> None:
        if self.stop.is_set():
            raise Stopped("The run was stopped.")
        if time.monotonic() >= self.deadline:
            raise JobFailed(
                f"The job took longer than its limit of {self.deadline_seconds:g} seconds.",
                code="deadline_exceeded",
            )

    @property
    def left_seconds(self) -> float:
        return max(self.deadline - time.monotonic(), 0.0)

    def wait(self, seconds: float) -> None:
        """Wait, but no longer than the run may go on."""
        self.stop.wait(min(seconds, self.left_seconds))
