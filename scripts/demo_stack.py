"""The stack that the demo talks to: `comfyfleet up` as a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scripts.demo_progress import WaitingLine
from scripts.state_folder import StateFolder
from scripts.supervisor import spawn

START_SECONDS = 120.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.1
TAIL_LINES = 25


class StackFailed(RuntimeError):
    """The stack did not start or did not stop; the message shows how its log ends."""


@contextmanager
def running(state: StateFolder, *, options: list[str]) -> Iterator[dict[str, Any]]:
    """Hold a stack that is ready; yields what its ready file says."""
    if state.is_in_use():
        raise StackFailed(f"A stack runs in {state.path} already. Stop it, or choose --state.")
    state.path.mkdir(parents=True, exist_ok=True)
    state.remove_ready()  # a crash may have left one
    log = state.path / "up.log"
    command = [sys.executable, "-m", "scripts.cli", "up", "--state", str(state.path), *options]
    with log.open("wb") as output:
        process = spawn(command, environment=os.environ, output=output.fileno())
    try:
        yield _ready(state, process)
    finally:
        code = _stop(process)
    if code != 0:
        raise StackFailed(f"The stack ended with code {code}. {tail(state)}")


def _ready(state: StateFolder, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    line, start = WaitingLine(), time.monotonic()
    while (seconds := time.monotonic() - start) < START_SECONDS:
        if ready := state.read_ready():
            line.end(f"The stack is up after {seconds:.1f} s: {ready['api_url']}")
            return ready
        if process.poll() is not None:
            line.end("The stack did not start.")
            raise StackFailed(f"The stack ended at once. {tail(state)}")
        line.draw(f"Starting the stack ... {seconds:.0f} s")
        time.sleep(POLL_SECONDS)
    line.end("The stack did not start.")
    raise StackFailed(f"The stack was not ready within {START_SECONDS:.0f} s. {tail(state)}")


def _stop(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def tail(state: StateFolder) -> str:
    """How the stack's log ends, and where it is."""
    log = state.path / "up.log"
    ends = log.read_text(errors="replace").splitlines()[-TAIL_LINES:] or ["(nothing)"]
    return "\n  ".join([f"Its log, {log}, ends:", *ends])
