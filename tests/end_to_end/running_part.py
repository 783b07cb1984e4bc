"""A part of a stack as a process that a test may hurt, and that is gone at the end all the same."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from scripts.supervisor import Part, spawn

START_SECONDS = 60.0
STOP_SECONDS = 15.0
LOOK_SECONDS = 0.05
TAIL_LINES = 40

Seen = TypeVar("Seen")


def until(what: str, look: Callable[[], Seen | None], *, seconds: float = 60.0) -> Seen:
    """Wait for what must come; returns what was seen. The bound is for a failing test only."""
    deadline = time.monotonic() + seconds
    while True:
        if seen := look():
            return seen
        assert time.monotonic() < deadline, f"Waited {seconds:g} s for this: {what}."
        time.sleep(LOOK_SECONDS)


class RunningPart:
    def __init__(self, make: Callable[[], Part], logs: Path) -> None:
        self._make = make
        self.part = make()
        self.name = self.part.name
        self.log = logs / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.groups: list[int] = []  # every process group that was ever ours

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started."
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        if not self.is_running:
            self.part = self._make()
            with self.log.open("ab") as output:
                self.process = spawn(
                    self.part.command, environment=self.part.environment, output=output.fileno()
                )
            self.groups.append(self.pid)
        if wait:
            self.await_answer()

    def await_answer(self) -> None:
        answers = self.part.answers
        until(f"{self.name} answers", lambda: answers(self.pid), seconds=START_SECONDS)

    def kill(self) -> None:
        """kill -9, with all its children."""
        self._signal(signal.SIGKILL)
        self.exit_code()

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def exit_code(self, *, seconds: float = STOP_SECONDS) -> int:
        """Wait for its end."""
        assert self.process is not None, f"{self.name} was not started."
        return self.process.wait(seconds)

    def begin_stop(self) -> None:
        if self.is_running:
            self.resume()  # a stopped process would not hear that it shall end
            self.terminate()

    def stop(self) -> None:
        if not self.is_running:
            return
        self.begin_stop()
        try:
            self.exit_code()
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def left(self) -> list[str]:
        """What still runs of the process groups that were ever ours. Ends them."""
        lines = subprocess.run(
            ["ps", "-A", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        members = [line.split(maxsplit=2) for line in lines]
        # One that has ended may wait for an init that takes its time.
        found = [one for one in members if int(one[0]) in self.groups and one[1][0] != "Z"]
        for group, *_ in found:
            with suppress(ProcessLookupError):
                os.killpg(int(group), signal.SIGKILL)
        return [arguments for _, _, arguments in found]

    def tail(self) -> str:
        if not self.log.exists():
            return "(nothing)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            os.killpg(self.pid, number)
