"""The screen of a stack: nobody ever waits for it.

It may stand still (Ctrl-S, a pager that shows its first page, a pipe nobody reads) or go away.
So lines wait in a bounded queue, and a thread of its own writes them. When the queue is full
the oldest line is dropped, and how many were is said as soon as the screen goes on.

The thread writes to the descriptor itself: were it stuck within sys.stdout, Python could not
end, because it flushes that at the end.
"""

import os
import threading
from collections import deque
from typing import TextIO

MOST_LINES = 2000
LAST_SECONDS = 0.5


class Screen:
    def __init__(self, output: TextIO) -> None:
        output.flush()  # what was printed so far comes first
        self.has_colours = output.isatty() and "NO_COLOR" not in os.environ
        self._descriptor = output.fileno()
        self._encoding = output.encoding
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._is_writing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._write, name="screen", daemon=True).start()

    def show(self, text: str) -> None:
        """Returns at once, whatever the screen does."""
        with self._changed:
            if len(self._waiting) == MOST_LINES:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(text)
            self._changed.notify_all()

    def finish(self) -> None:
        """Grant the last lines a moment."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._is_writing), LAST_SECONDS)

    def _write(self) -> None:
        while True:
            text = self._next()
            try:
                self._write_out(f"{text}\n".encode(self._encoding, errors="replace"))
            except OSError:  # gone for good, or for this line: the files have it
                continue

    def _next(self) -> str:
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting)
            self._is_writing = True
            text = self._waiting.popleft()
            dropped, self._dropped = self._dropped, 0
        told = f"({dropped} lines were dropped here; the logs have them)\n" if dropped else ""
        return told + text

    def _write_out(self, rest: bytes) -> None:
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
