"""Faults as they are done to a town, and undone when their time is up.

Everything happens in the main thread, between two looks of the supervisor, so nothing starts
again in the middle of a fault.
"""

import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from redis.exceptions import RedisError

from models.base import utcnow
from tests.chaos import faults, links, processes
from tests.chaos.faults import Fault, Kind
from tests.chaos.processes import Process
from tests.chaos.town import Town

END_SECONDS = 5.0  # for a kill -9 to be over

_LINK_TROUBLES = {
    Kind.CUT: links.Trouble.CUT,
    Kind.STALL: links.Trouble.STALL,
    Kind.SLOW: links.Trouble.SLOW,
    Kind.MUTE: links.Trouble.MUTE,
}

Undo = Callable[[], None]


class WasDown(Exception):
    """There was nothing to hurt: an earlier fault was not over."""


@dataclass
class Done:
    """A fault that was begun: for the list of a failed run."""

    fault: Fault
    at: datetime
    missed: str = ""
    ends_at: float | None = None
    undo: Undo | None = None

    def __str__(self) -> str:
        missed = f" (missed: {self.missed})" if self.missed else ""
        return f"{self.at:%H:%M:%S.%f} {self.fault}{missed}"


class Troublemaker:
    def __init__(self, town: Town, schedule: list[Fault]) -> None:
        self.town = town
        self.done: list[Done] = []
        self._schedule = list(reversed(schedule))  # the next one is the last
        self._last = 0.0

    def start(self) -> None:
        self._last = time.monotonic()

    @property
    def has_more(self) -> bool:
        return bool(self._schedule) or any(done.undo for done in self.done)

    def tick(self) -> None:
        """End what is over and begin what is due."""
        now = time.monotonic()
        for done in self.done:
            if done.undo and now >= (done.ends_at or 0):
                done.undo()
                done.undo = None
        if self._schedule and now >= self._last + self._schedule[-1].pause_seconds:
            self._last = now
            self._begin(self._schedule.pop(), now)

    def stop(self) -> None:
        """Whatever still lasts is over now."""
        self._schedule.clear()
        for done in self.done:
            if done.undo:
                done.undo()
                done.undo = None

    def _begin(self, fault: Fault, now: float) -> None:
        done = Done(fault, utcnow(), ends_at=now + fault.seconds)
        self.done.append(done)
        try:
            done.undo = _DO[fault.kind](self.town, fault)
        except WasDown as down:
            done.missed = str(down)


def _kill(town: Town, fault: Fault) -> None:
    process = _process(town, fault.target)
    process.signal(signal.SIGKILL)
    process.close()


def _kill_child(town: Town, fault: Fault) -> None:
    child = _child(town, fault)
    child.signal(signal.SIGKILL)
    child.close()


def _stop(town: Town, fault: Fault) -> Undo:
    leader = _process(town, fault.target)
    leader.signal(signal.SIGSTOP)  # first, so that it has no more children
    leader.close()
    return _stop_all(processes.family(leader.pid))


def _stop_child(town: Town, fault: Fault) -> Undo:
    return _stop_all([_child(town, fault)])


def _stop_all(stopped: list[Process]) -> Undo:
    for process in stopped:
        process.signal(signal.SIGSTOP)

    def go_on() -> None:
        for process in stopped:
            process.signal(signal.SIGCONT)
            process.close()

    return go_on


def _restart(town: Town, fault: Fault) -> Undo:
    process = _process(town, fault.target)
    process.signal(town.part(fault.target).stop_signal)

    def insist() -> None:
        process.signal(signal.SIGKILL)
        process.close()

    return insist


def _flush(town: Town, fault: Fault) -> None:
    try:
        with town.redis_client() as redis:
            redis.flushall()
    except RedisError as error:
        raise WasDown(type(error).__name__) from error


def _wipe(town: Town, fault: Fault) -> None:
    """A GPU worker's machine is replaced, and its ComfyUI with it."""
    machine = [fault.target, *town.beside(fault.target)]
    for name in machine:
        process = _process(town, name)
        process.signal(signal.SIGKILL)
        process.has_ended(within_seconds=END_SECONDS)
        process.close()
    for path in (path for name in machine for path in town.files_of(name)):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _reset(town: Town, fault: Fault) -> None:
    town.links.reset(fault.target)


def _hurt_link(town: Town, fault: Fault) -> Undo:
    trouble = _LINK_TROUBLES[fault.kind]
    town.links.begin(fault.target, trouble)
    return lambda: town.links.end(fault.target, trouble)


def _process(town: Town, name: str) -> Process:
    pid = town.pid(name)
    if pid is None:
        raise WasDown("it was down")
    try:
        return Process(pid)
    except ProcessLookupError:
        raise WasDown("it had just ended") from None


def _child(town: Town, fault: Fault) -> Process:
    leader = _process(town, fault.target)
    born = processes.children(leader.pid)
    leader.close()
    if not born:
        raise WasDown("it has no children")
    try:
        return Process(born[fault.choice % len(born)])
    except ProcessLookupError:
        raise WasDown("it had just ended") from None


_DO: dict[Kind, Callable[[Town, Fault], Undo | None]] = {
    Kind.KILL: _kill,
    Kind.KILL_CHILD: _kill_child,
    Kind.STOP: _stop,
    Kind.STOP_CHILD: _stop_child,
    Kind.RESTART: _restart,
    Kind.FLUSH: _flush,
    Kind.WIPE: _wipe,
    Kind.RESET: _reset,
    **dict.fromkeys(_LINK_TROUBLES, _hurt_link),
}

if missing := set(faults.WEIGHTS) - set(_DO):
    raise LookupError(f"Nobody knows how to do {missing}.")
