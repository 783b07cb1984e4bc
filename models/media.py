"""Whether an uploaded file is a picture or a film we accept, and what it measures.

A file is accepted if its type is on the list, its bytes begin and end as that type's do,
and it really decodes. Decoding is the dangerous part, so it happens in a process of its
own (models.media_probe) with limits on time and memory and without our secrets.
"""

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from models.errors import DependencyUnavailable, MediaNotAllowed, MediaUnreadable
from models.media_structure import NAMES
from models.settings import Settings

logger = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[1]
_START_SECONDS = 5  # for the process to begin at all, on a machine under load
_ANSWER_BYTES = 64 * 1024

# Each may take COMFYFLEET_PROBE_MEMORY_MB: a rush of uploads must not take the machine.
_at_once = threading.BoundedSemaphore(2)


@dataclass(frozen=True)
class Media:
    kind: str  # image or video
    mime_type: str
    width: int
    height: int
    duration_seconds: float | None  # of videos and animations
    frames: int


def probe(file: IO[bytes], *, claimed_mime_type: str, settings: Settings) -> Media:
    """Decode a file, or refuse it with a sentence for whoever uploaded it."""
    if claimed_mime_type not in NAMES:
        names = ", ".join(NAMES.values())
        raise MediaNotAllowed(f"This type of file is not accepted. Accepted are: {names}.")
    if not _at_once.acquire(timeout=2 * settings.probe_seconds):
        raise DependencyUnavailable(
            "Too many files are being checked. Please try again in a moment.",
            retry_after_seconds=settings.probe_seconds,
        )
    try:
        answer = _ask(file, claimed_mime_type, settings)
    finally:
        _at_once.release()
    if "media" in answer:
        return Media(mime_type=claimed_mime_type, **answer["media"])
    refusal = MediaNotAllowed if answer["refused"] == MediaNotAllowed.code else MediaUnreadable
    raise refusal(answer["detail"])


def content_hash(file: IO[bytes]) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _ask(file: IO[bytes], mime_type: str, settings: Settings) -> dict[str, Any]:
    limits = {
        "mime_type": mime_type,
        "image_max_pixels": settings.image_max_pixels,
        "video_max_pixels": settings.video_max_pixels,
        "video_max_seconds": settings.video_max_seconds,
        "seconds": settings.probe_seconds,
        "memory_mb": settings.probe_memory_mb,
    }
    command = [sys.executable, "-P", "-s", "-B", "-m", "models.media_probe"]
    # A file and not a pipe for its answer: the process may write only so much to a file.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            status = subprocess.run(
                [*command, f"/dev/fd/{file.fileno()}", json.dumps(limits)],
                pass_fds=[file.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=_environment(),
                timeout=settings.probe_seconds + _START_SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            raise _took_too_much() from None
        return _understand(status, _written(out), _written(err))


def _environment() -> dict[str, str]:
    """Nothing of ours but the code: a file that takes over a decoder finds no secrets."""
    passed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
    # Without it, each thread's allocator reserves address space that counts as memory.
    return passed | {"PYTHONPATH": str(_ROOT), "MALLOC_ARENA_MAX": "1"}


def _understand(status: int, out: bytes, err: bytes) -> dict[str, Any]:
    if status < 0:
        logger.info("A file ended the process that decoded it by signal %s.", -status)
        raise _took_too_much()
    if status > 0:
        logger.error("Files can't be checked: %s", err.decode(errors="replace"))
        raise DependencyUnavailable("Files can't be checked right now.", retry_after_seconds=60)
    if err:
        logger.info("A file was refused: %s", err.decode(errors="replace"))
    if not out:  # a decoder left by itself
        raise _took_too_much()
    answer: dict[str, Any] = json.loads(out)
    return answer


def _written(file: Any) -> bytes:
    file.seek(0)
    written: bytes = file.read(_ANSWER_BYTES)
    return written


def _took_too_much() -> MediaUnreadable:
    return MediaUnreadable(
        "The file takes too much time or memory to decode, or is damaged. "
        "A smaller or shorter version may be accepted."
    )
