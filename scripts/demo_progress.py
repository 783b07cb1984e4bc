"""Progress of several jobs: bars that are drawn over and over on a terminal, else plain lines."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

WIDTH = 28


@dataclass(frozen=True)
class Bar:
    name: str
    status: str
    progress: float

    def __str__(self) -> str:
        filled = round(self.progress * WIDTH)
        drawn = "█" * filled + "░" * (WIDTH - filled)
        return f"  {self.name:<14} {drawn} {self.progress:>4.0%}  {self.status}"


class ProgressBars:
    def __init__(self, screen: TextIO = sys.stdout) -> None:
        self._screen = screen
        self._is_terminal = screen.isatty()
        self._drawn: Sequence[Bar] = ()

    def draw(self, bars: Sequence[Bar]) -> None:
        if self._is_terminal:
            back = f"\x1b[{len(self._drawn)}F" if self._drawn else ""
            self._print(back + "\n".join(f"{bar}\x1b[K" for bar in bars))
        else:
            for bar in bars:
                if bar not in self._drawn:  # only what changed
                    self._print(f"  {bar.name:<14} {bar.progress:>4.0%}  {bar.status}")
        self._drawn = list(bars)

    def _print(self, text: str) -> None:
        print(text, file=self._screen, flush=True)


class WaitingLine:
    """One line that is drawn again while something is awaited."""

    def __init__(self, screen: TextIO = sys.stdout) -> None:
        self._screen = screen
        self._last = ""

    def draw(self, text: str) -> None:
        if self._screen.isatty():
            print(f"\r\x1b[K{text}", end="", file=self._screen, flush=True)
        elif text.rstrip(".0123456789 s") != self._last.rstrip(".0123456789 s"):
            print(text, file=self._screen, flush=True)
        self._last = text

    def end(self, text: str) -> None:
        start = "\r\x1b[K" if self._screen.isatty() else ""
        print(f"{start}{text}", file=self._screen, flush=True)
