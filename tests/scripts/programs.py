"""Small programs under a supervisor in its own process, and what can be seen of them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_SECONDS = 30.0

LIVES = "answer(); time.sleep(600)"


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """A zombie that nobody has buried yet is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Programs:
    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process

    def pid(self, name: str) -> int:
        wait_until(lambda: bool(self.read(name)), f"{name} writes its process id")
        return int(self.read(name))

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def all_answer(self) -> None:
        wait_until((self.folder / "all").exists, "every program answers")

    def ended(self) -> tuple[int, str]:
        said, complaint = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, said + complaint

    def story(self) -> list[str]:
        return self.read("story").splitlines()


@contextmanager
def programs(folder: Path, *words: str, **environment: str) -> Iterator[Programs]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.scripts.stack_of_programs", folder, *words],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Programs(folder, process)
        finally:
            process.kill()
