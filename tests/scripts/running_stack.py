"""`comfyfleet up` as a person starts it: a process, its ready file, and who belongs to it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.state_folder import StateFolder

PATIENCE_SECONDS = 100.0


def wait_until(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class RunningStack:
    def __init__(self, state: StateFolder, process: subprocess.Popen[bytes], printed: Path) -> None:
        self.state = state
        self.process = process
        self._printed = printed

    def ready(self) -> dict[str, Any]:
        def is_up() -> bool:
            assert self.process.poll() is None, self.said()
            return "comfyfleet is up." in self.said()

        wait_until(is_up, "every part answers")
        return self.state.read_ready() or {}

    def said(self) -> str:
        return self._printed.read_text()

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)

    def members(self, word: str = "") -> list[int]:
        """The parts' processes, of those only that have this word in their command."""
        lock = (self.state.path / "parts.lock").stat()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                files = [os.stat(file) for file in (folder / "fd").iterdir()]
                command = (folder / "cmdline").read_text().replace("\0", " ")
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
            holds = any(os.path.samestat(file, lock) for file in files)
            if holds and word in command and int(folder.name) != self.process.pid:
                found.append(int(folder.name))
        return found


@contextmanager
def up(folder: Path, *options: str, **environment: str) -> Iterator[RunningStack]:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "scripts.cli", "up", "--state", str(folder), *options]
    ours = ("COMFYFLEET_", "TEST_")  # what the tests were told is not for the stack
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)} | environment
    with tempfile.NamedTemporaryFile(dir=folder, prefix="said-", delete=False) as said:
        process = subprocess.Popen(command, env=env, stdout=said, stderr=said)
    stack = RunningStack(StateFolder(folder), process, Path(said.name))
    try:
        yield stack
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE_SECONDS)
