"""A control worker whose beat has ended ends too, so that whoever looks after it starts both.

Beat (`-B`) is a child process that Celery starts and never looks at again. Without it the worker
would go on, well by all appearances, and nobody would ask it for anything.
"""

import logging
import os
import signal
import threading
from typing import Any

from celery import bootsteps

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class BeatWatch(bootsteps.StartStopStep):
    """Starts after beat, and stops before it."""

    requires = ("celery.worker.components:Beat",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._stopped = threading.Event()

    def start(self, parent: Any) -> None:
        if parent.beat is not None:
            watch = threading.Thread(target=self._watch, args=(parent.beat,), daemon=True)
            watch.start()

    def stop(self, parent: Any) -> None:  # noqa: ARG002
        self._stopped.set()

    def terminate(self, parent: Any) -> None:
        self.stop(parent)

    def _watch(self, beat: Any) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            if not beat.is_alive():
                logger.error("Beat has ended, so this worker ends too: start it again.")
                os.kill(os.getpid(), signal.SIGTERM)
                return
