"""What may be done a moment later, by a thread of its own, as much at once as has gathered.

For things that nobody has to wait for and that somebody would do again if they got lost:
ringing for workers, noting that a job is queued. A crash loses what has not been done;
the reconciler finds it.
"""

import contextlib
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

Handler = Callable[[list[Any]], None]

_AT_ONCE = 500
_MOST_WAITING = 10_000
_CLOSE_SECONDS = 5.0


class Later:
    """Safe to share between threads and across a fork."""

    def __init__(self) -> None:
        self._begin()
        _every_instance.add(self)

    def _begin(self) -> None:
        """Also in a forked child: the thread, and what it had to do, stay with the parent."""
        self._waiting: queue.Queue[tuple[Handler, Any] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, handler: Handler, item: Any) -> None:
        """Have `handler` called with a list that holds this item. Returns at once."""
        try:
            self._waiting.put_nowait((handler, item))
        except queue.Full:
            logger.warning("Dropped %r: too much is waiting to be done.", item)
            return
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="later", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            batches: dict[Handler, list[Any]] = {}
            gathered = self._gathered()
            for task in gathered:
                if task is not None:
                    batches.setdefault(task[0], []).append(task[1])
            for handler, items in batches.items():
                try:
                    handler(items)
                except Exception:
                    logger.exception("Could not do %d things; the reconciler will.", len(items))
            if None in gathered:
                return

    def _gathered(self) -> list[tuple[Handler, Any] | None]:
        """Wait for one, and take all that have come meanwhile."""
        tasks = [self._waiting.get()]
        while len(tasks) < _AT_ONCE:
            try:
                tasks.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        return tasks

    def close(self) -> None:
        """Do what is waiting, and stop. Bounded: nothing here is worth a hanging exit."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=_CLOSE_SECONDS)
            self._thread.join(_CLOSE_SECONDS)
            self._thread = None


_every_instance: "weakref.WeakSet[Later]" = weakref.WeakSet()


def _after_fork() -> None:
    for later in _every_instance:
        later._begin()


os.register_at_fork(after_in_child=_after_fork)
