"""What the parts of a stack print: each line with the part's name before it, and in a file.

The file has everything. A part waits only for its file: the screen may stand still or go away
(screen.py), and a file that can't be written (a full disk) is said once. The parts go on.
"""

import threading
from collections import deque
from pathlib import Path
from typing import IO, TextIO

from scripts.screen import Screen

COLOURS = (36, 32, 35, 33, 34, 96, 92, 95, 93, 94)
LONGEST_LINE = 64 * 1024
LARGEST_FILE = 10 * 1024**2
JOIN_SECONDS = 0.5


class LogLines:
    def __init__(self, folder: Path, screen: TextIO, *, names: list[str]) -> None:
        self.folder = folder
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
        self._keep(name, f"{sentence}\n".encode())
        self._show(name, sentence)

    def _keep(self, name: str, line: bytes) -> None:
        try:
            with self.file(name).open("ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            if name not in self._unwritable:
                self._unwritable.add(name)
                self._show(name, f"lines are missing in its log, which can't be written: {error}")

    def _show(self, name: str, line: str) -> None:
        label = f"{name:<{self._width}} |"
        if self._screen.has_colours:
            colour = COLOURS[self._names.index(name) % len(COLOURS)]
            label = f"\x1b[{colour}m{label}\x1b[0m"
        self.show(f"{label} {line}")

    def show(self, text: str) -> None:
        self._screen.show(text)

    def tail(self, name: str, lines: int = 20) -> list[str]:
        """How the log of a part ends."""
        self.catch_up()
        try:
            with self.file(name).open(errors="replace") as file:
                return [line.rstrip() for line in deque(file, lines)]
        except FileNotFoundError:
            return []

    def catch_up(self) -> None:
        """Wait a moment for the last lines of parts that have ended."""
        for reader in self._readers:
            reader.join(JOIN_SECONDS / len(self._readers))

    def close(self) -> None:
        """The last that was shown is on the screen, if anybody reads there."""
        self._screen.finish()


def _put_aside_if_large(file: Path) -> None:
    if file.exists() and file.stat().st_size > LARGEST_FILE:
        file.replace(file.with_suffix(".log.1"))
