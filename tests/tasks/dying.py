"""Runs control tasks in children of its own, and each dies at a given moment, by kill -9.

A process without threads that forks is asked by lines: `TASK MOMENT`. It answers `died`, or
`lived` when the task was done before so many moments had come. A moment is what comes right
after a commit, and right before and after an object is deleted.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event

from models import hot_path, prepared
from models.settings import Settings
from tasks import schedule
from tasks.backend import Backend


class Fate:
    def __init__(self, moment: int) -> None:
        self._moments = count(1)
        self._last = moment

    def __call__(self, *_: object) -> None:
        if next(self._moments) == self._last:
            os.kill(os.getpid(), signal.SIGKILL)

    def rule(self, backend: Backend) -> Backend:
        for name in ("central", "pool:main"):
            engine = backend.databases.engine(name)
            event.listen(engine, "commit", self._note_commit)
            event.listen(engine, "checkin", self._after_commit)
        hot_path.round_trip = self._round_trip
        return replace(backend, store=DyingStore(backend.store, self))  # type: ignore[arg-type]

    def _note_commit(self, connection: Connection) -> None:
        connection.info["committed"] = True

    def _after_commit(self, _: object, entry: Any) -> None:
        if entry.info.pop("committed", False):
            self()

    def _round_trip(self, *given: Any, **values: Any) -> Any:
        row = prepared.round_trip(*given, **values)
        self()
        return row


class DyingStore:
    def __init__(self, store: Any, fate: Fate) -> None:
        self._store, self._fate = store, fate

    def delete(self, key: str) -> None:
        self._fate()
        self._store.delete(key)
        self._fate()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def main() -> None:
    settings = Settings.from_env()
    tasks = {task.name: task for task in schedule.control_tasks(settings)}
    for line in sys.stdin:
        name, moment = line.split()
        child = os.fork()
        if child == 0:
            run(settings, tasks[name], int(moment))
        _, status = os.waitpid(child, 0)
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        answer = "died" if was_killed else "lived" if status == 0 else f"failed {status}"
        os.write(sys.stdout.fileno(), f"{answer}\n".encode())


def run(settings: Settings, task: schedule.ControlTask, moment: int) -> None:
    try:
        backend = Backend.open(settings)
        task.run_once(Fate(moment).rule(backend))
        backend.close()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class Dying:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, task: str, moment: int) -> bool:
        """Whether it died; else all was done before."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{task} {moment}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer in ("died", "lived"), answer
        return answer == "died"


@contextmanager
def dying(backend: Backend) -> Iterator[Dying]:
    given = {f"COMFYFLEET_{k.upper()}": str(v) for k, v in vars(backend.settings).items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tasks.dying"],
        env=os.environ | given,
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Dying(process)
    finally:
        process.communicate(timeout=60)


if __name__ == "__main__":
    main()
