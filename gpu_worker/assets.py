"""Files that graphs need, kept on disk by the SHA-256 of their content.

A file has its final name only when it is whole and its hash was right; until then it is a
.part, and whatever a crash leaves of those is swept at the next start. Whoever uses a file
holds a shared lock on it, whoever downloads or evicts it an exclusive one. The kernel keeps the
locks, so they hold between processes and end with them.
"""

import fcntl
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import requests

from gpu_worker.downloads import (
    AssetGone,
    AssetUnavailable,
    Downloaded,
    Limit,
    Patience,
    download,
    shown,
)
from gpu_worker.provider import Stopped

logger = logging.getLogger(__name__)

__all__ = ["AssetCache", "AssetDamaged", "AssetGone", "AssetUnavailable", "Patience"]

_HASH = re.compile(r"[0-9a-f]{64}")
_KEPT = re.compile(r"[0-9a-f]{64}-(?P<size>\d+)")  # the size tells a damaged file
_LOOK_SECONDS = 0.05
_SPARE = 20  # a twentieth of the room is freed at a time: looking at every file takes a while
_TRIES = 2  # of a download whose content is not what was promised


class AssetDamaged(AssetUnavailable):
    """What came is not what was promised."""


@dataclass(frozen=True)
class _Held:
    """An open file under a lock."""

    path: Path
    file: BinaryIO

    def let_go(self, *, remove: bool) -> None:
        if remove:
            self.path.unlink(missing_ok=True)
        with suppress(OSError):  # what could not be written before can't be now
            self.file.close()


class AssetCache:
    """Safe to share between threads; a folder is safe to share between processes."""

    def __init__(self, folder: Path, max_bytes: int, *, patience: Patience | None = None) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._patience = patience or Patience()
        self._session = requests.Session()
        self._session.trust_env = False
        self._room_bytes = 0  # that may be filled before the folder is looked at again
        folder.mkdir(parents=True, exist_ok=True)
        with self._nobody_else():
            self._sweep()
            self._make_room()

    def close(self) -> None:
        self._session.close()

    @contextmanager
    def fetch(
        self,
        url: str,
        content_hash: str | None,
        *,
        stop: threading.Event | None = None,
        longest_seconds: float = float("inf"),
    ) -> Iterator[Path]:
        """The file, for reading only, and there for as long as the `with` block lasts.

        Without a hash nothing is kept. Raises AssetGone, AssetDamaged, AssetUnavailable, or
        Stopped soon after `stop` is set.
        """
        seconds = min(longest_seconds, self._patience.longest_seconds)
        limit = Limit(stop or threading.Event(), time.monotonic() + seconds)
        self._folder.mkdir(parents=True, exist_ok=True)  # a person may have cleared it
        if content_hash:
            held, temporary = self._get(url, _checked(content_hash), limit)
        else:
            held, temporary = self._get_unnamed(url, limit), True
        try:
            yield held.path
        finally:
            held.let_go(remove=temporary)

    def _get(self, url: str, content_hash: str, limit: Limit) -> tuple[_Held, bool]:
        """The file, and whether it is to be removed afterwards."""
        part = self._folder / f"{content_hash}.part"
        while True:
            if kept := self._kept(content_hash):
                return kept, False
            if held := _locked(part):
                return self._fill(held, url, content_hash, limit)
            # Somebody is downloading it right now: theirs will do.
            if time.monotonic() > limit.ends_at:
                raise AssetUnavailable(f"{shown(url)} is being downloaded, but takes too long.")
            if limit.stop.wait(_LOOK_SECONDS):
                raise Stopped

    def _get_unnamed(self, url: str, limit: Limit) -> _Held:
        held = self._new_part()
        try:
            self._download(url, held.file, limit)
        except BaseException:
            held.let_go(remove=True)
            raise
        return held

    def _fill(self, part: _Held, url: str, content_hash: str, limit: Limit) -> tuple[_Held, bool]:
        try:
            if kept := self._kept(content_hash):  # came while we went for the lock
                part.let_go(remove=True)
                return kept, False
            size_bytes = self._download_as_promised(url, content_hash, part.file, limit)
            return self._place(part, content_hash, size_bytes)
        except BaseException:
            part.let_go(remove=True)
            raise

    def _download_as_promised(
        self, url: str, content_hash: str, file: BinaryIO, limit: Limit
    ) -> int:
        for _ in range(_TRIES):
            came = self._download(url, file, limit)
            if came.sha256 == content_hash:
                return came.size_bytes
            logger.warning("%s has the hash %s, not %s.", shown(url), came.sha256, content_hash)
        raise AssetDamaged(f"{shown(url)} has the hash {came.sha256}, not {content_hash}.")

    def _download(self, url: str, file: BinaryIO, limit: Limit) -> Downloaded:
        return download(self._session, url, file, patience=self._patience, limit=limit)

    def _place(self, part: _Held, content_hash: str, size_bytes: int) -> tuple[_Held, bool]:
        """Give the file its name. Nobody can evict it before it is locked as used."""
        if size_bytes > self._max_bytes:
            path = self._folder / f"{uuid4().hex}.part"  # so that others need not wait for us
            os.replace(part.path, path)
            return _Held(path, part.file), True
        path = self._shelf(content_hash) / f"{content_hash}-{size_bytes}"
        with self._nobody_else():
            if kept := self._kept(content_hash):  # one in use must not be replaced
                part.let_go(remove=True)
                return kept, False
            path.parent.mkdir(exist_ok=True)
            os.replace(part.path, path)
            fcntl.flock(part.file, fcntl.LOCK_SH)
            self._room_bytes -= size_bytes
            if self._room_bytes < 0:
                self._make_room()
        return _Held(path, part.file), False

    def _kept(self, content_hash: str) -> _Held | None:
        """The file from the cache, locked as used; None if it is not there or damaged."""
        for path in self._shelf(content_hash).glob(f"{content_hash}-*"):
            if held := _locked(path, shared=True):
                if os.fstat(held.file.fileno()).st_size == _size_of_name(path):
                    os.utime(held.file.fileno())  # used just now
                    return held
                logger.warning("The cached file %s is damaged; fetching it again.", path.name)
                held.let_go(remove=False)  # the download replaces it
        return None

    def _shelf(self, content_hash: str) -> Path:
        """One of 256 folders: finding a file must not take longer the more there are."""
        return self._folder / content_hash[:2]

    def _new_part(self) -> _Held:
        while True:
            if held := _locked(self._folder / f"{uuid4().hex}.part"):
                return held

    def _make_room(self) -> None:
        """Evict what was used longest ago. The caller has the folder to itself."""
        states = {path: path.stat() for path in self._folder.glob("??/*")}
        total_bytes = sum(state.st_size for state in states.values())
        spare_bytes = self._max_bytes // _SPARE
        if total_bytes > self._max_bytes:
            for path in sorted(states, key=lambda one: states[one].st_mtime_ns):
                if total_bytes <= self._max_bytes - spare_bytes:
                    break
                if held := _locked(path):
                    held.let_go(remove=True)
                    total_bytes -= states[path].st_size
        # Others may add to the folder too, so we look again before we think that it is full.
        self._room_bytes = min(self._max_bytes - total_bytes, spare_bytes)

    def _sweep(self) -> None:
        """Remove what crashes left: the parts that nobody holds."""
        for path in self._folder.glob("*.part"):
            if held := _locked(path):
                held.let_go(remove=True)

    @contextmanager
    def _nobody_else(self) -> Iterator[None]:
        """Names appear and go one process at a time."""
        with (self._folder / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _checked(content_hash: str) -> str:
    if not _HASH.fullmatch(content_hash.lower()):
        raise AssetDamaged("A content hash must be 64 hexadecimal digits.")
    return content_hash.lower()


def _size_of_name(path: Path) -> int:
    found = _KEPT.fullmatch(path.name)
    return int(found["size"]) if found else -1


def _locked(path: Path, *, shared: bool = False) -> _Held | None:
    """Open and lock a file; a shared lock needs it to exist. None if it can't be had now."""
    try:
        file = path.open("rb" if shared else "a+b")
    except FileNotFoundError:
        if shared:
            return None
        raise
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # Between opening and locking, the file may have been removed or got another name.
        if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return _Held(path, file)
    except (BlockingIOError, FileNotFoundError):
        pass
    file.close()
    return None
