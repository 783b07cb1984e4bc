"""Sends what is due, in threads of its own, until nothing is.

A thread takes a turn for one endpoint, and delivers what is due there, one after the other. Few
threads serve one endpoint, and those where tries fail have threads of their own: however many
receivers are dead, and however much waits for them, the others are served.

Any number of couriers may work at once, and any of them may die: what it had claimed comes due.
"""

import logging
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from models import delivery_claims
from models.base import utcnow
from tasks.backend import Backend
from tasks.webhook_delivery import Outcome, deliver_next

logger = logging.getLogger(__name__)

TURN_SECONDS = 10.0  # then it is somebody else's turn
LOOK_SECONDS = 1.0
LEAST_LOOK_SECONDS = 0.05  # between two looks, however much happens
REST_SECONDS = 0.2  # after a try that failed: a receiver that is down is not hammered
CLOSE_SECONDS = 3.0
WAIT_SECONDS = 2.0  # of a run of the control task: less than its period


@dataclass
class Sent:
    delivered: int = 0
    put_off: int = 0
    failed: int = 0


def run_once(backend: Backend) -> Sent:
    """Have this process's courier look. It goes on by itself; what it did since is told."""
    courier = courier_of(backend)
    courier.call()
    courier.wait(WAIT_SECONDS)
    done = courier.take_counts()
    return Sent(done[Outcome.DELIVERED], done[Outcome.PUT_OFF], done[Outcome.FAILED])


def send_all_due(backend: Backend, *, now: datetime | None = None) -> Counter[Outcome]:
    """Come back when nothing is left to do, however long that takes."""
    courier = Courier(backend, now=now)
    courier.run()
    return courier.take_counts()


_making = threading.Lock()
_couriers: dict[Backend, "Courier"] = {}


def courier_of(backend: Backend) -> "Courier":
    """The one courier of this process; it ends with its backend."""

    def retire() -> None:
        _couriers.pop(backend).close()

    with _making:
        if backend not in _couriers:
            _couriers[backend] = Courier(backend)
            backend.before_close.append(retire)
        return _couriers[backend]


class Courier:
    """Safe to share between threads. With a `now`, time stands still: for tests."""

    def __init__(self, backend: Backend, *, now: datetime | None = None) -> None:
        self._backend = backend
        self._now = now
        self._free = dict.fromkeys((False, True), backend.settings.webhook_senders)  # is it failing
        self._turns: Counter[UUID] = Counter()  # threads that serve an endpoint now
        self._changed = threading.Condition()
        self._is_called = self._is_running = self._is_closing = False
        self._done: Counter[Outcome] = Counter()

    def call(self) -> None:
        """Have it look now. Returns at once."""
        with self._changed:
            self._is_called = True
            self._changed.notify_all()
            if self._is_running or self._is_closing:
                return
            self._is_running = True
        threading.Thread(target=self.run, name="courier", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Until it has nothing left to do, but not for longer."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_running, timeout=seconds)

    def take_counts(self) -> Counter[Outcome]:
        """What was done since this was asked last."""
        with self._changed:
            done, self._done = self._done, Counter()
        return done

    def close(self) -> None:
        """Begin nothing more, and wait a moment for what is under way."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._turns, timeout=CLOSE_SECONDS)

    def run(self) -> None:
        """Look, and look again when something has changed, until nothing is left to do."""
        try:
            while self._look():
                pass
        except Exception:
            logger.exception("Could not look for deliveries; the next call tries again.")
            with self._changed:
                self._is_running = False
                self._changed.notify_all()

    def _look(self) -> bool:
        with self._changed:
            self._is_called = False
        began = time.monotonic()
        with self._backend.databases.central(read_only=True) as session:
            due = list(delivery_claims.endpoints_due(session, now=self._now or utcnow()).items())
        random.shuffle(due)  # if there are more than threads, nobody is always the last
        for endpoint_id, is_failing in due:
            self._begin_turn(endpoint_id, is_failing)
        if due:  # a look that takes long is not taken as often
            time.sleep(max(LEAST_LOOK_SECONDS, 3 * (time.monotonic() - began)))
        with self._changed:
            if self._turns:
                self._changed.wait_for(self._has_news, timeout=LOOK_SECONDS)
            self._is_running = bool(self._turns or self._is_called) and not self._is_closing
            self._changed.notify_all()
            return self._is_running

    def _has_news(self) -> bool:
        return self._is_called or self._is_closing

    def _begin_turn(self, endpoint_id: UUID, is_failing: bool) -> None:
        most = 1 if is_failing else self._backend.settings.webhook_endpoint_senders
        with self._changed:
            if self._turns[endpoint_id] >= most or not self._free[is_failing] or self._is_closing:
                return
            self._turns[endpoint_id] += 1
            self._free[is_failing] -= 1
        turn = partial(self._turn, endpoint_id, is_failing)
        threading.Thread(target=turn, name="courier-turn", daemon=True).start()

    def _turn(self, endpoint_id: UUID, is_failing: bool) -> None:
        until = time.monotonic() + TURN_SECONDS
        try:
            while self._deliver(endpoint_id) and time.monotonic() < until:
                pass
            if is_failing and not self._is_closing:
                time.sleep(REST_SECONDS)
        except Exception:
            logger.exception("Could not serve the endpoint %s; it comes due again.", endpoint_id)
            time.sleep(LOOK_SECONDS)
        with self._changed:
            self._turns -= Counter([endpoint_id])  # and drop it at zero
            self._free[is_failing] += 1
            self._is_called = True
            self._changed.notify_all()

    def _deliver(self, endpoint_id: UUID) -> bool:
        """The next one of this endpoint. Whether the turn goes on: the receiver took it."""
        if self._is_closing:
            return False
        outcome = deliver_next(self._backend, endpoint_id, now=self._now or utcnow())
        with self._changed:
            self._done[outcome] += 1
        return outcome == Outcome.DELIVERED
