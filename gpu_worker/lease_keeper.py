"""Keeps the lease of the job at work, and the webapp's word on it.

One thread sends every heartbeat, with a lease or without. It brings progress along and learns
whether the job was cancelled, the lease lost, or the worker is to take no more jobs. The
webapp says when the next one is due; when it is away, we ask again soon and work on: the
lease outlives a short outage, and who lost it anyway is told so by the report.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpu_worker import logs
from gpu_worker.backend import Backend, LeaseLost, Refused, Unreachable
from gpu_worker.lease import Lease

logger = logging.getLogger(__name__)

FIRST_SECONDS = 1.0  # after the lease; most short jobs are done by then
AGAIN_SECONDS = 3.0  # after the webapp did not answer

CANCELLED, LOST, STOPPING = "cancelled", "lost", "stopping"

LOCKED_OUT = 403
NOT_KNOWN = (401, LOCKED_OUT, 409)  # 409: our token is not valid any more, and our name is taken


def _nothing() -> None:
    pass


class Held:
    """The job at work. `stop` is set when it shall not go on; `why` says the reason.

    `reported` is set when its one report was answered, or given up.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.stop = threading.Event()
        self.why = ""
        self.share = 0.0
        self.node: str | None = None
        self.output_url, self.output_headers = lease.output_url, lease.output_headers
        self.reported = threading.Event()
        self._interrupting = threading.Lock()
        self._on_interrupt: Callable[[], None] = _nothing

    def progress(self, share: float, node: str | None) -> None:
        self.share, self.node = share, node

    def interrupt(self, why: str) -> None:
        """The first reason counts."""
        with self._interrupting:
            if self.stop.is_set():
                return
            self.why = why
            self.stop.set()
        self._on_interrupt()

    def on_interrupt(self, step: Callable[[], None]) -> None:
        """Called the moment it is interrupted, now if it was already. Must return at once."""
        with self._interrupting:
            self._on_interrupt = step
            if not self.stop.is_set():
                return
        step()


class LeaseKeeper:
    def __init__(
        self,
        backend: Backend,
        *,
        idle_seconds: float,
        on_draining: Callable[[bool], None],
        on_refused: Callable[[bool], None] = lambda _refused: None,
        first_seconds: float = FIRST_SECONDS,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._backend = backend
        self._idle_seconds = idle_seconds
        self._first_seconds, self._again_seconds = first_seconds, again_seconds
        self._on_draining = on_draining
        self._on_refused = on_refused
        self._wake = threading.Event()
        self._changing = threading.Lock()  # of `held` and when its next heartbeat is due
        self._closed = False
        self._stopping = False
        self._nudged = False
        self._last_beat = time.monotonic()  # registering counts as one
        self._due = self._last_beat + idle_seconds
        self.held: Held | None = None
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    @contextmanager
    def hold(self, lease: Lease) -> Iterator[Held]:
        held = Held(lease)
        # Jobs too short for a heartbeat must not keep the idle ones from being sent.
        self._hold(held, min(self._first_seconds, self._idle_seconds_left()))
        if self._stopping:
            held.interrupt(STOPPING)
        try:
            yield held
        finally:
            self._hold(None, self._idle_seconds_left())
            held.on_interrupt(_nothing)  # or the two would keep each other in memory

    def _idle_seconds_left(self) -> float:
        return self._last_beat + self._idle_seconds - time.monotonic()

    def _hold(self, held: Held | None, seconds: float) -> None:
        due = time.monotonic() + seconds
        with self._changing:
            is_sooner = due < self._due
            self.held, self._due = held, due
        if is_sooner:
            self._wake.set()

    def stop_work(self) -> None:
        """The worker has to go: whatever it holds, now or in a moment, is interrupted."""
        self._stopping = True
        if held := self.held:
            held.interrupt(STOPPING)

    def await_report(self, seconds: float) -> bool:
        """Wait until nothing is held of which the webapp has not been told."""
        held = self.held
        return held is None or held.reported.wait(seconds)

    @property
    def _is_over(self) -> bool:
        """A lease that is being handed back is not to be kept either."""
        return self._closed or self._stopping

    def nudge(self) -> None:
        """Ask the webapp now: something has changed there."""
        self._nudged = True
        self._wake.set()

    def ask_uploads(self, held: Held, outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Addresses for these outputs; called by the job itself."""
        answer = self._backend.heartbeat(held.lease, outputs=outputs)
        self._learn(held, answer)
        uploads: list[dict[str, Any]] = answer.get("uploads") or []
        return uploads

    def _run(self) -> None:
        while not self._is_over:
            self._wake.wait(max(self._due - time.monotonic(), 0.05))
            self._wake.clear()
            if (self._nudged or time.monotonic() >= self._due) and not self._is_over:
                self._nudged = False  # before it is sent: the next nudge may have newer news
                held = self.held
                with logs.about(**(held.lease.ids if held else {})):
                    seconds = self._beat(held)
                self._plan(held, seconds)

    def _plan(self, held: Held | None, seconds: float) -> None:
        """Unless another job began during this heartbeat, which has a plan of its own."""
        with self._changing:
            if self.held is held:
                self._due = time.monotonic() + seconds

    def _beat(self, held: Held | None) -> float:
        """One heartbeat; returns the seconds until the next."""
        try:
            answer = self._send(held)
            self._last_beat = time.monotonic()
            self._learn(held, answer)
            return float(answer["next_heartbeat_seconds"])
        except LeaseLost as lost:
            if held is not None:
                logger.warning("Job %s: %s", held.lease.job_id, lost)
                held.interrupt(LOST)
            return self._idle_seconds
        except Unreachable as away:
            logger.warning("No heartbeat: %s", away)
            return self._again_seconds
        except Refused as refused:
            logger.error("The heartbeat was refused: %s", refused)
            self._go_without(held, refused)
            return self._idle_seconds
        except Exception:  # this thread has to live, or the lease dies
            logger.exception("A heartbeat went wrong.")
            return self._again_seconds

    def _go_without(self, held: Held | None, refused: Refused) -> None:
        """Tickets are left to those who are let in. Who is locked out has no job any more."""
        if refused.status in NOT_KNOWN:
            self._on_refused(True)
        if refused.status == LOCKED_OUT and held is not None:
            held.interrupt(LOST)

    def _send(self, held: Held | None) -> dict[str, Any]:
        if held is None:
            return self._backend.heartbeat()
        told: dict[str, Any] = {"progress": held.share}
        if held.node is not None:
            told["current_node"] = held.node[:200]
        return self._backend.heartbeat(held.lease, **told)

    def _learn(self, held: Held | None, answer: dict[str, Any]) -> None:
        self._on_refused(False)
        self._on_draining(bool(answer["draining"]))
        if held is None:
            return
        if answer["cancel_requested"]:
            held.interrupt(CANCELLED)
        if answer.get("output_url"):
            held.output_url, held.output_headers = answer["output_url"], answer["output_headers"]
