"""Prompts whose end nobody has seen, in memory and on disk.

A process may end at any moment while ComfyUI works on. What is written here before a prompt is
sent, and removed when it has ended, tells the next process which prompts to end first.
"""

import json
import logging
import os
import threading
from pathlib import Path

logger = logging.getLogger(__name__)


class PromptsAtWork:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._given_up: set[str] = set()

    def keep_in(self, file: Path) -> None:
        """From now on. What is in the file was given up: by a process that is gone."""
        with self._lock:
            self._file = file
            # Without an id, ComfyUI would interrupt whatever runs.
            self._given_up |= _read(file) - {""}

    @property
    def given_up(self) -> list[str]:
        """Those that may still be at work though nobody follows them."""
        with self._lock:
            return sorted(self._given_up)

    def begin(self, prompt_id: str) -> None:
        with self._lock:
            self._running.add(prompt_id)
            self._write()

    def give_up(self, prompt_id: str) -> None:
        with self._lock:
            self._running.discard(prompt_id)
            self._given_up.add(prompt_id)
            self._write()

    def end(self, prompt_id: str) -> None:
        with self._lock:
            self._running.discard(prompt_id)
            self._given_up.discard(prompt_id)
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps(sorted(self._running | self._given_up)))
        os.replace(written, self._file)


def _read(file: Path) -> set[str]:
    try:
        kept = json.loads(file.read_text())
    except FileNotFoundError:
        return set()
    except ValueError:
        kept = None
    if not isinstance(kept, list):
        logger.warning("%s can't be read: prompts of before may still be at work.", file)
        return set()
    return {prompt_id for prompt_id in kept if isinstance(prompt_id, str)}
