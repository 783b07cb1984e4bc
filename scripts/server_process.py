"""One server process: started on a free port, awaited until it answers, and always stopped.

It ends with us, however we end (see die_with_parent.py). On Linux "us" is the *thread* that
started it, so such a thread has to stay for as long as the server shall.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

START_SECONDS = 30.0
STOP_SECONDS = 10.0
CONNECT_SECONDS = 2
POLL_SECONDS = 0.02
PORT_ATTEMPTS = 5
LOG_TAIL_LINES = 20

LAUNCHER = Path(__file__).with_name("die_with_parent.py")

Command = Callable[[int], Sequence[str | Path]]  # the arguments for a port
Answers = Callable[[int, int], bool]  # whether the server on a port, with our process id, answers


class ServerUnavailable(RuntimeError):
    """A server can't be had. The message says what to install, or what its log says."""


@dataclass(frozen=True)
class Account:
    """A user without rights, for a server that refuses to run as root."""

    user: int
    group: int

    def may(self, test: str, path: Path) -> bool:
        """Ask as that user, so that the folders above and access lists count too."""
        asked = subprocess.run(
            ["test", test, path],
            user=self.user,
            group=self.group,
            extra_groups=[],
            cwd="/",
            env={"PATH": os.defpath},
        )
        return asked.returncode == 0


@dataclass(frozen=True, kw_only=True)
class Program:
    name: str
    log: Path
    account: Account | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        account = self.account or Account(user=-1, group=-1)
        orders = (os.getpid(), int(self.stop_signal), account.user, account.group)
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", LAUNCHER, *map(str, orders), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",  # another user may not be allowed into ours
                env={"PATH": os.defpath, "LC_ALL": "C", **self.environment},
                start_new_session=True,  # Ctrl-C is for us; the server stops when we are done
            )

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(self.stop_signal)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def run(self, command: Sequence[str | Path]) -> None:
        """Run to the end, for a program that prepares a server."""
        process = self.start(command)
        try:
            if process.wait(START_SECONDS) != 0:
                raise self.failure("could not be prepared")
        except subprocess.TimeoutExpired:
            raise self.failure(f"was not prepared within {START_SECONDS:.0f} s") from None
        finally:
            self.stop(process)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def failure(self, fact: str) -> ServerUnavailable:
        tail = self.log_text().splitlines()[-LOG_TAIL_LINES:] or ["(nothing)"]
        return ServerUnavailable("\n  ".join([f"{self.name} {fact}. Its log ends:", *tail]))


@contextmanager
def running(
    program: Program, command: Command, answers: Answers, *, port: int = 0
) -> Iterator[int]:
    """Hold a server that answers; yields its port. Port 0 takes a free one."""
    for attempts_left in reversed(range(PORT_ATTEMPTS)):
        chosen = port or free_port()
        process = program.start(command(chosen))
        try:
            failed = _failure_to_answer(program, process, lambda: answers(chosen, process.pid))  # noqa: B023
            if failed is None:
                yield chosen
                return
        finally:
            program.stop(process)
        # Between our look and the server's start somebody else may have taken the port.
        taken = "address already in use" in program.log_text().lower()
        if port or not taken or not attempts_left:
            raise failed


def _failure_to_answer(
    program: Program, process: subprocess.Popen[bytes], answers: Callable[[], bool]
) -> ServerUnavailable | None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return program.failure(f"ended at once with code {process.returncode}")
        if answers():
            return None
        time.sleep(POLL_SECONDS)
    return program.failure(f"did not answer within {START_SECONDS:.0f} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def package_folder(name: str) -> Path | None:
    """Where a package is, without importing it: of these we want the binaries only."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None
