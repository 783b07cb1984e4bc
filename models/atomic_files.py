"""Files that appear whole and on disk, or not at all: written aside, synced, then renamed."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def draft(folder: Path) -> Iterator[IO[bytes]]:
    """A new file to write to. It is gone at the end, unless `publish` gave it its name."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="draft-", delete=False) as file:
        try:
            yield file
        finally:
            with suppress(FileNotFoundError):
                os.unlink(file.name)


def publish(file: IO[bytes], target: Path, *, root: Path) -> None:
    """Give a draft its name below `root`, in one step that survives a power cut."""
    file.flush()
    # The kernel's own stamps advance every few milliseconds; this one tells two versions
    # written in the same moment apart.
    os.utime(file.fileno(), ns=(time.time_ns(), time.time_ns()))
    os.fsync(file.fileno())
    os.replace(file.name, target)
    _sync(target.parent)  # the name is data too,
    for folder in target.parents:  # and so are the names of the folders it lies in
        if folder == root or folder in _kept:
            break
        _sync(folder.parent)
        _keep(folder)


# Folders whose names are on disk; one that was removed is never made again.
_kept: set[Path] = set()


def _keep(folder: Path) -> None:
    if len(_kept) > 10_000:  # bounded: syncing once too often does no harm
        _kept.clear()
    _kept.add(folder)


def last_written(path: Path) -> float:
    """A time in seconds; the far future for what is gone, so that sweepers pass over it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
