"""Keep the parts of a stack running, and stop all of them, in order and in bounded time.

Parts belong to tiers. Tier 0 is started first and stopped last; a tier is started when every
part below it answers. A part that ends is started again, whatever its exit code, after a
pause that doubles while it keeps ending. What is left of a part that ended, its own children,
is killed with it: it runs in a process group of its own.

Everything happens in one thread, the main one: on Linux a child ends with the thread that
started it (die_with_parent.py), so nobody is left even when this process is killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

from scripts.log_lines import LogLines
from scripts.server_process import LAUNCHER, Account

TICK_SECONDS = 0.05
START_SECONDS = 60.0
STARTS_BEFORE_GIVING_UP = 4
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 10.0
SETTLED_SECONDS = 30.0
KILL_SECONDS = 2.0


class PartFailed(RuntimeError):
    """A part of the stack can't be had; the message names it and shows how its log ends."""


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    command: Sequence[str | os.PathLike[str]]
    environment: Mapping[str, str]
    tier: int
    answers: Callable[[int], bool]  # whether the part, with this process id, can be used
    stop_seconds: float = 2.0
    stop_signal: signal.Signals = signal.SIGTERM
    before_restart: Callable[[], None] = lambda: None
    account: Account | None = None  # whom it runs as; None: whoever we are


@dataclass
class Running:
    """A part and its process of the moment."""

    part: Part
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    starts: int = 0
    pause_seconds: float = FIRST_PAUSE_SECONDS
    start_again_at: float = 0.0
    has_answered: bool = False


@dataclass
class StopRequest:
    """Set by Ctrl-C and SIGTERM. A plain attribute: an Event could deadlock in a signal."""

    is_set: bool = False

    def install(self) -> "StopRequest":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ask)
        return self

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_set = True


def spawn(
    command: Sequence[str | os.PathLike[str]],
    *,
    environment: Mapping[str, str],
    output: int,
    death_signal: signal.Signals = signal.SIGTERM,
    keep_open: Sequence[int] = (),
    account: Account | None = None,
) -> subprocess.Popen[bytes]:
    """A program in a process group of its own that ends when we do. The first is a full path."""
    account = account or Account(user=-1, group=-1)
    orders = (os.getpid(), int(death_signal), account.user, account.group)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", LAUNCHER, *map(str, orders), *command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**environment},
        start_new_session=True,  # Ctrl-C is for us; the parts stop in their order
        pass_fds=keep_open,
    )


@dataclass
class Supervisor:
    parts: Sequence[Part]
    log: LogLines
    stop_request: StopRequest
    keep_open: Sequence[int] = ()  # open files that every part inherits: locks
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS
    running: list[Running] = field(init=False)

    def __post_init__(self) -> None:
        self.running = [Running(part) for part in self.parts]

    def start(self) -> bool:
        """Start all tiers; False when we were asked to stop meanwhile."""
        for tier in sorted({part.tier for part in self.parts}):
            members = self._tier(tier)
            for member in members:
                self._start(member)
            if not self._wait_for_answers(members):
                return False
        return True

    def run(self) -> None:
        """Look after the parts until we are asked to stop."""
        while not self.stop_request.is_set:
            self.restart_what_ended()
            time.sleep(TICK_SECONDS)

    def stop(self) -> None:
        """Stop what runs, the highest tier first. Nothing is left when this returns."""
        for tier in sorted({part.tier for part in self.parts}, reverse=True):
            members = [member for member in self._tier(tier) if member.process]
            for member in members:
                _signal(member, member.part.stop_signal)
            patience = max((member.part.stop_seconds for member in members), default=0.0)
            _wait_for_end(members, seconds=patience)
            for member in members:
                if not _has_ended(member):
                    self.log.say(member.part.name, f"did not stop in {patience:g} s: killed")
                self._bury(member)
        self.log.catch_up()

    def _tier(self, tier: int) -> list[Running]:
        return [member for member in self.running if member.part.tier == tier]

    def _start(self, member: Running) -> None:
        part = member.part
        member.process = spawn(
            part.command,
            environment=part.environment,
            output=subprocess.PIPE,
            death_signal=part.stop_signal,
            keep_open=self.keep_open,
            account=part.account,
        )
        member.started_at, member.starts = time.monotonic(), member.starts + 1
        if member.process.stdout:
            self.log.follow(part.name, member.process.stdout)

    def _wait_for_answers(self, members: list[Running]) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while waiting := [member for member in members if not member.has_answered]:
            if self.stop_request.is_set:
                return False
            self.restart_what_ended()
            for member in waiting:
                self._look_for_answer(member, is_late=time.monotonic() > deadline)
            time.sleep(TICK_SECONDS)
        return True

    def _look_for_answer(self, member: Running, *, is_late: bool) -> None:
        if member.starts >= STARTS_BEFORE_GIVING_UP and not member.process:
            raise self._failure(member, f"ended {member.starts} times before it answered")
        if member.process and member.part.answers(member.process.pid):
            member.has_answered = True
            seconds = time.monotonic() - member.started_at
            self.log.say(member.part.name, f"ready after {seconds:.1f} s")
        elif is_late:
            raise self._failure(member, f"did not answer within {START_SECONDS:.0f} s")

    def _failure(self, member: Running, fact: str) -> PartFailed:
        name = member.part.name
        tail = self.log.tail(name) or ["(nothing)"]
        return PartFailed("\n  ".join([f"{name} {fact}. Its log ends:", *tail]))

    def restart_what_ended(self) -> None:
        """One look at all parts. Whoever does not `run` has to call this again and again."""
        for member in self.running:
            if member.process and _has_ended(member):
                self._plan_restart(member)
            elif member.starts and not member.process and _is_due(member):
                member.part.before_restart()
                self._start(member)

    def _plan_restart(self, member: Running) -> None:
        code = self._bury(member)
        now = time.monotonic()
        if now - member.started_at > SETTLED_SECONDS:
            member.pause_seconds = FIRST_PAUSE_SECONDS
        self.log.say(
            member.part.name,
            f"ended with {_told(code)}; it is started again in {member.pause_seconds:g} s",
        )
        member.start_again_at = now + member.pause_seconds
        member.pause_seconds = min(member.pause_seconds * 2, self.longest_pause_seconds)

    def _bury(self, member: Running) -> int:
        """Kill what is left of a part's process group, and take its exit code."""
        process = member.process
        if process is None:
            raise LookupError(f"{member.part.name} does not run.")
        # Before its code is taken: until then the number can belong to nobody else.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        member.process = None
        try:
            return process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:  # stuck in the kernel; the others matter more
            self.log.say(member.part.name, f"process {process.pid} can't be killed")
            return -signal.SIGKILL


def _is_due(member: Running) -> bool:
    return time.monotonic() >= member.start_again_at


def _has_ended(member: Running) -> bool:
    """Looks without taking the exit code: the process keeps its number until `_bury`."""
    if member.process is None:
        return True
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, member.process.pid, options) is not None


def _signal(member: Running, number: signal.Signals) -> None:
    if member.process and not _has_ended(member):
        os.kill(member.process.pid, number)


def _wait_for_end(members: list[Running], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not all(map(_has_ended, members)) and time.monotonic() < deadline:
        time.sleep(TICK_SECONDS)


def _told(code: int) -> str:
    return f"code {code}" if code >= 0 else signal.Signals(-code).name
