"""Counts that all web processes of a server share, whatever becomes of any of them.

Each process counts in files of its own, in a folder in memory, and whoever is asked adds them
up (prometheus_client does both). Files go by slots: a process takes the lowest that nobody
holds, and the kernel lets go of its lock when it ends, also by kill -9. The next process counts
on where that one stopped, so nothing is lost, nothing is counted twice, and there are never
more files than there were processes at once.

Without such a folder a process counts alone. `comfyfleet serve` makes one; other ways to start
several processes have to set PROMETHEUS_MULTIPROC_DIR to an empty one, or each tells its own.
"""

import fcntl
import glob
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from prometheus_client import CollectorRegistry, multiprocess, values
from prometheus_client.metrics_core import Metric

logger = logging.getLogger(__name__)

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
PREFIX = "comfyfleet-counts-"
FRESH_SECONDS = 300  # an older folder that no process has a slot in was left behind by a crash

#: Room that each file takes at once. In memory that is full, a write to a file that has to grow
#: ends the process.
_ROOM_BYTES = {"counter": 2**18, "histogram": 2**20, "gauge_livesum": 2**16}

_slot: int | None = None


def make_folder() -> Path:
    """A new one for a server that is about to start. Those of dead servers go."""
    parent = Path("/dev/shm") if os.path.isdir("/dev/shm") else Path(tempfile.gettempdir())  # noqa: S108
    for old in parent.glob(f"{PREFIX}*"):
        if _is_abandoned(old):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))


def remove_folder() -> None:
    """At the end of a server, if the folder was made for it."""
    folder = os.environ.get(FOLDER, "")
    if os.path.basename(folder).startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        if time.time() - folder.stat().st_mtime < FRESH_SECONDS:
            return False
        return not any(is_held(lock) for lock in folder.glob("*.lock"))
    except OSError:
        return False


def is_held(lock: Path | str) -> bool:
    """Whether a process that lives has this slot."""
    with open(lock, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def share() -> bool:
    """Before the first count is made: have it kept in the folder, if there is one with room."""
    values.ValueClass = values.MutexValue  # whatever the environment made of it
    if not os.path.isdir(os.environ.get(FOLDER, "")):
        return False
    try:
        values.ValueClass = values.MultiProcessValue(slot)  # type: ignore[no-untyped-call]
    except OSError as error:
        logger.error("This process counts alone: %s", error)
        return False
    return True


def slot() -> int:
    """Ours, taken when it is first needed."""
    global _slot
    if _slot is None:
        _slot = _take(os.environ[FOLDER])
    return _slot


def _take(folder: str) -> int:
    for number in count():
        lock = os.open(f"{folder}/{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _prepare(folder, number)
        except OSError as error:
            os.close(lock)
            if not isinstance(error, BlockingIOError):
                raise
        else:
            return number  # the lock is ours until the end of the process
    raise AssertionError("There is always one more number.")


def _prepare(folder: str, number: int) -> None:
    for stale in glob.glob(f"{folder}/gauge_live*_{number}.db"):
        os.remove(stale)  # what its holder had open is not open any more
    for kind, size in _ROOM_BYTES.items():
        with open(f"{folder}/{kind}_{number}.db", "ab") as file:
            os.posix_fallocate(file.fileno(), 0, size)


def _after_fork() -> None:
    """In the child: the slot is the parent's."""
    global _slot
    _slot = None


os.register_at_fork(after_in_child=_after_fork)


class SharedCounts:
    """For a registry: what all processes have counted."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._folder = os.environ[FOLDER]
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        files = [file for file in glob.glob(f"{self._folder}/*.db") if self._counts(file)]
        yield from multiprocess.MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]

    def _counts(self, file: str) -> bool:
        """What a dead process had open counts no more; what it counted does."""
        name = os.path.basename(file)
        if not name.startswith("gauge_live"):
            return os.path.getsize(file) > 0
        number = name.rpartition("_")[2].removesuffix(".db")
        return is_held(f"{self._folder}/{number}.lock")
