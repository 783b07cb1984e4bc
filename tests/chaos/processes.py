"""Processes to send signals to: one, and never another that got its number since."""

import os
import select
import signal
from contextlib import suppress
from pathlib import Path


class Process:
    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError if there is none."""
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(self._handle, number)

    def has_ended(self, *, within_seconds: float = 0.0) -> bool:
        ended, _, _ = select.select([self._handle], [], [], within_seconds)
        return bool(ended)

    def close(self) -> None:
        os.close(self._handle)


def family(pid: int) -> list[Process]:
    """A process, its children, and theirs."""
    found = [pid]
    for member in found:
        found += children(member)
    processes = []
    for member in found:
        with suppress(ProcessLookupError):
            processes.append(Process(member))
    return processes


def children(pid: int) -> list[int]:
    """In the order of their numbers."""
    parents = ((int(folder.name), _parent(folder)) for folder in Path("/proc").glob("[0-9]*"))
    return sorted(child for child, parent in parents if parent == pid)


def _parent(folder: Path) -> int | None:
    try:
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(parent)
