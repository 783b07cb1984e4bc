"""What the tests of the asset cache share: contents, and looks into its folder."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from gpu_worker.assets import AssetCache

MEGABYTE = 1024 * 1024
PHOTO = bytes(range(256)) * 5000
PHOTO_HASH = hashlib.sha256(PHOTO).hexdigest()


def content(number: int, size: int = 1000) -> tuple[bytes, str]:
    made = bytes([number]) * size
    return made, hashlib.sha256(made).hexdigest()


def fetch(cache: AssetCache, url: str, content_hash: str | None) -> bytes:
    with cache.fetch(url, content_hash) as path:
        return path.read_bytes()


def kept(folder: Path) -> set[str]:
    """The hashes in the cache; anything else but the lock is a leftover."""
    names = {path.name for path in folder.rglob("*") if path.is_file()} - {"lock"}
    assert all("-" in name for name in names), names
    return {name.split("-")[0] for name in names}


def wait_for(true: Callable[[], bool], *, seconds: float = 20) -> None:
    ends_at = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends_at, "it did not come true in time"
        time.sleep(0.01)
