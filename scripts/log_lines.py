"""What the parts of a stack print: each line with the part's name before it, and in a file.

The file has everything, as it was printed. On the screen our lines of JSON are shown as people
read them, and without what libraries tell of their daily doings.

A part waits only for its file: the screen may stand still or go away (screen.py), and a file
that can't be written (a full disk) is said once. The parts go on.
"""

import json
import logging
import threading
from collections import deque
from pathlib import Path
from typing import IO, Any, TextIO

from models import logs
from scripts.screen import Screen

COLOURS = (36, 32, 35, 33, 34, 96, 92, 95, 93, 94)
CHATTY = ("gunicorn", "celery", "kombu")
LONGEST_LINE = 64 * 1024
LARGEST_FILE = 10 * 1024**2
JOIN_SECONDS = 0.5


class LogLines:
    def __init__(
        self, folder: Path, screen: TextIO, *, names: list[str], is_verbose: bool = False
    ) -> None:
        self.folder = folder
        self._is_verbose = is_verbose
        self._screen = Screen(screen)
        self._width = max(map(len, names), default=0)
        self._names = names
        self._unwritable: set[str] = set()
        self._readers: list[threading.Thread] = []
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            _put_aside_if_large(self.file(name))

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def follow(self, name: str, output: IO[bytes]) -> None:
        """Read what a part prints until it closes its output."""
        reader = threading.Thread(
            target=self._read, args=(name, output), name=f"log of {name}", daemon=True
        )
        reader.start()
        self._readers = [known for known in self._readers if known.is_alive()] + [reader]

    def _read(self, name: str, output: IO[bytes]) -> None:
        with output:
            while line := output.readline(LONGEST_LINE):
                self._keep(name, line if line.endswith(b"\n") else line + b"\n")
                if told := line.decode(errors="replace").rstrip():
                    self._show(name, told)

    def say(self, name: str, sentence: str) -> None:
        """A line about a part, not by it."""
        about = {"name": __name__, "levelno": logging.INFO, "levelname": "INFO", "msg": sentence}
        line = logs.JsonLines().format(logging.makeLogRecord(about))
        self._keep(name, f"{line}\n".encode())
        self._show(name, sentence)

    def _keep(self, name: str, line: bytes) -> None:
        try:
            with self.file(name).open("ab", buffering=0) as file:
                file.write(line)
                is_large = file.tell() > LARGEST_FILE
            if is_large:
                _put_aside_if_large(self.file(name))
        except OSError as error:
            if name not in self._unwritable:
                self._unwritable.add(name)
                self._show(name, f"lines are missing in its log, which can't be written: {error}")

    def _show(self, name: str, line: str) -> None:
        told = fields_of(line)
        if told and not self._is_verbose and is_chatter(told):
            return
        label = f"{name:<{self._width}} |"
        if self._screen.has_colours:
            colour = COLOURS[self._names.index(name) % len(COLOURS)]
            label = f"\x1b[{colour}m{label}\x1b[0m"
        lines = logs.text_of(told, has_colours=self._screen.has_colours) if told else line
        self.show("\n".join(f"{label} {one}" for one in lines.splitlines()))

    def show(self, text: str) -> None:
        self._screen.show(text)

    def tail(self, name: str, lines: int = 20) -> list[str]:
        """How the log of a part ends."""
        self.catch_up()
        try:
            with self.file(name).open(errors="replace") as file:
                return [readable(line.rstrip()) for line in deque(file, lines)]
        except FileNotFoundError:
            return []

    def catch_up(self) -> None:
        """Wait a moment for the last lines of parts that have ended."""
        for reader in self._readers:
            reader.join(JOIN_SECONDS / len(self._readers))

    def close(self) -> None:
        """The last that was shown is on the screen, if anybody reads there."""
        self._screen.finish()


def fields_of(line: str) -> dict[str, Any] | None:
    """Of one of our lines; None if it is somebody else's."""
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    is_ours = isinstance(told, dict) and {"time", "level", "logger", "message"} <= told.keys()
    return told if is_ours else None


def is_chatter(told: dict[str, Any]) -> bool:
    return told["level"] in ("debug", "info") and str(told["logger"]).startswith(CHATTY)


def readable(line: str) -> str:
    told = fields_of(line)
    return logs.text_of(told, has_colours=False) if told else line


def _put_aside_if_large(file: Path) -> None:
    if file.exists() and file.stat().st_size > LARGEST_FILE:
        file.replace(file.with_suffix(".log.1"))
