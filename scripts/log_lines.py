"""What the parts of a stack print: each line with the part's name before it, and in a file.

The file has everything. The screen may go away (a closed terminal, a pipe nobody reads): then
the parts go on, and so do the files.
"""

import os
import threading
from collections import deque
from pathlib import Path
from typing import IO, TextIO

COLOURS = (36, 32, 35, 33, 34, 96, 92, 95, 93, 94)
LONGEST_LINE = 64 * 1024
LARGEST_FILE = 10 * 1024**2
JOIN_SECONDS = 0.5


class LogLines:
    def __init__(self, folder: Path, screen: TextIO, *, names: list[str]) -> None:
        self.folder = folder
        self._screen = screen
        self._width = max(map(len, names), default=0)
        self._names = names
        self._colours = screen.isatty() and "NO_COLOR" not in os.environ
        self._writing = threading.Lock()
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
        with output, self.file(name).open("ab", buffering=0) as file:
            while line := output.readline(LONGEST_LINE):
                file.write(line if line.endswith(b"\n") else line + b"\n")
                if told := line.decode(errors="replace").rstrip():
                    self._show(name, told)

    def say(self, name: str, sentence: str) -> None:
        """A line about a part, not by it."""
        with self.file(name).open("a") as file:
            file.write(f"{sentence}\n")
        self._show(name, sentence)

    def _show(self, name: str, line: str) -> None:
        label = f"{name:<{self._width}} |"
        if self._colours:
            colour = COLOURS[self._names.index(name) % len(COLOURS)]
            label = f"\x1b[{colour}m{label}\x1b[0m"
        self.show(f"{label} {line}")

    def show(self, text: str) -> None:
        with self._writing:
            try:
                print(text, file=self._screen, flush=True)
            except (OSError, ValueError):  # gone, or closed: the files have it
                return

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


def _put_aside_if_large(file: Path) -> None:
    if file.exists() and file.stat().st_size > LARGEST_FILE:
        file.replace(file.with_suffix(".log.1"))
