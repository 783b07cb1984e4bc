"""Real control workers with beat, as an operator starts them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery

from tasks.backend import Backend

PATIENCE_SECONDS = 90.0
COMMAND = [
    "-m",
    "celery",
    "--quiet",
    "-A",
    "tasks.app",
    "worker",
    "-B",
    "-P",
    "threads",
    "-Q",
    "control",
    "--without-gossip",
    "--without-mingle",
    "-l",
    "INFO",
]


@dataclass
class ControlWorker:
    process: "subprocess.Popen[bytes]"
    node: str
    broker: str
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def count(self, task: str) -> int:
        """How many of these it has taken, as Celery says."""
        with Celery("tests", broker=self.broker, set_as_current=False) as celery:
            stats = celery.control.inspect([self.node], timeout=2).stats() or {}
        taken: dict[str, int] = stats.get(self.node, {}).get("total", {})
        return taken.get(task, 0)

    def kill(self) -> None:
        """kill -9, with beat, which is a child of it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)


@contextmanager
def control_worker(backend: Backend, folder: Path, name: str) -> Iterator[ControlWorker]:
    given = {f"COMFYFLEET_{k.upper()}": str(v) for k, v in vars(backend.settings).items()}
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *COMMAND, "-n", f"{name}@tests", f"--schedule={folder}/{name}-beat"],
            env=os.environ | given,
            cwd=Path(__file__).parents[2],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    worker = ControlWorker(process, f"{name}@tests", backend.settings.redis_url, log)
    try:
        yield worker
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                worker.kill()


@contextmanager
def control_workers(backend: Backend, folder: Path, *names: str) -> Iterator[list[ControlWorker]]:
    with ExitStack() as stack:
        yield [stack.enter_context(control_worker(backend, folder, name)) for name in names]


def until(what: str, true: Callable[[], Any], *workers: ControlWorker) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        logs = "\n".join(worker.said()[-3000:] for worker in workers)
        assert time.monotonic() < deadline, f"Waited in vain: {what}.\n{logs}"
        time.sleep(0.1)
