"""Looks after the provider while no job runs: a worker whose ComfyUI is unwell takes no tickets."""

import logging
import threading
from collections.abc import Callable, Iterable

from gpu_worker.door import UNWELL, Door
from gpu_worker.provider import Provider, Unwell

logger = logging.getLogger(__name__)

WELL_SECONDS, UNWELL_SECONDS = 10.0, 1.0


class HealthWatch:
    def __init__(
        self,
        providers: Iterable[Provider],
        door: Door,
        *,
        is_busy: Callable[[], bool],
        well_seconds: float = WELL_SECONDS,
        unwell_seconds: float = UNWELL_SECONDS,
    ) -> None:
        self._providers = list(providers)
        self._door = door
        self._is_busy = is_busy
        self._well_seconds, self._unwell_seconds = well_seconds, unwell_seconds
        self._closed = threading.Event()
        self._look_now = threading.Event()
        self._is_well = True
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._look_now.set()

    def report(self, unwell: Unwell) -> None:
        """A job found it unwell: the door closes now, and opens when a look says otherwise."""
        self._note(unwell)
        self._look_now.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._look_now.wait(self._well_seconds if self._is_well else self._unwell_seconds)
            self._look_now.clear()
            if not self._closed.is_set() and not self._is_busy():
                self._note(self._look())

    def _look(self) -> Unwell | None:
        try:
            for provider in self._providers:
                provider.check()
        except Unwell as unwell:
            return unwell
        except Exception as bug:
            logger.exception("Could not look after the provider.")
            return Unwell(f"It could not be looked at ({type(bug).__name__}).")
        return None

    def _note(self, unwell: Unwell | None) -> None:
        if unwell is not None:
            if self._is_well:
                logger.error("Unwell: %s", unwell.message)
            self._is_well = False
            self._door.close(UNWELL)
        else:
            if not self._is_well:
                logger.info("Well again.")
            self._is_well = True
            self._door.open(UNWELL)
