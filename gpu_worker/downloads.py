"""One file over HTTP, into a file of ours, in a way that can be left at any moment.

A thread of its own waits for the network, because nothing else can walk away from a server
that has gone silent. It never touches our files. Addresses carry signatures: no message shows
what follows the question mark.
"""

import hashlib
import queue
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

import requests
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema
from urllib3.exceptions import HTTPError

from gpu_worker import logs
from gpu_worker.provider import Stopped

PATIENCE_SECONDS = 120.0
LONGEST_SECONDS = 1800.0
LARGEST_BYTES = 16 * 1024**3

_CONNECT_SECONDS = 3.0
_SILENCE_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.2
_LAST_PAUSE_SECONDS = 5.0
_PIECE_BYTES = 256 * 1024
_PIECES_AHEAD = 16
_LOOK_SECONDS = 0.1  # how soon a stop is noticed
_TRY_AGAIN = {408, 425, 429}  # and all above 499
_RUN_OUT = {400, 401, 403}  # of an address, or of the credentials that signed it: S3 says all three


class AssetUnavailable(Exception):
    """The file can't be had now; later, or from elsewhere, it may."""


class AssetGone(AssetUnavailable):
    """The file is not there: asking again would not help, and no other address would."""


class _BrokenOff(Exception):
    """One try failed in a way that another may not."""


@dataclass(frozen=True)
class Downloaded:
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a file is worth waiting for."""

    seconds: float = PATIENCE_SECONDS  # after the first failure, before we give up
    longest_seconds: float = LONGEST_SECONDS  # of everything together
    silence_seconds: float = _SILENCE_SECONDS  # without a byte, before a try counts as failed


@dataclass(frozen=True)
class Limit:
    """When fetching ends, whether the file came or not."""

    stop: threading.Event
    ends_at: float


def download(
    session: requests.Session,
    url: str,
    file: BinaryIO,
    *,
    patience: Patience,
    limit: Limit,
) -> Downloaded:
    """Replace what is in `file` by what is at the address.

    Raises AssetGone, AssetUnavailable, or Stopped soon after the limit's `stop` is set.
    """
    give_up_at: float | None = None
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        reader = _Reader(session, url, patience.silence_seconds)
        try:
            with closing(reader.pieces(limit)) as pieces:
                return _save(pieces, file)
        except _BrokenOff as failure:
            now = time.monotonic()
            give_up_at = give_up_at or min(now + patience.seconds, limit.ends_at)
            if now + pause_seconds > give_up_at:
                raise AssetUnavailable(f"{shown(url)} can't be had: {failure}.") from None
        if limit.stop.wait(pause_seconds):
            raise Stopped
        pause_seconds = min(2 * pause_seconds, _LAST_PAUSE_SECONDS)


def shown(url: str) -> str:
    """The address as it may be logged."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "The address"
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def _save(pieces: Iterable[bytes], file: BinaryIO) -> Downloaded:
    file.seek(0)
    file.truncate()
    digest, size_bytes = hashlib.sha256(), 0
    try:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size_bytes += len(piece)
            if size_bytes > LARGEST_BYTES:
                raise AssetGone(f"It is larger than {LARGEST_BYTES} bytes, the most we take.")
        file.flush()
    except OSError as error:
        raise AssetUnavailable(f"An asset can't be stored: {error.strerror}.") from error
    return Downloaded(size_bytes=size_bytes, sha256=digest.hexdigest())


class _Reader:
    """One request in a thread. Left behind, the thread ends with its next byte or timeout."""

    def __init__(self, session: requests.Session, url: str, silence_seconds: float) -> None:
        self._session = session
        self._url = url
        self._timeout = (_CONNECT_SECONDS, silence_seconds)
        self._came: queue.Queue[bytes | Exception | None] = queue.Queue(_PIECES_AHEAD)
        self._left = threading.Event()

    def pieces(self, limit: Limit) -> Generator[bytes, None, None]:
        threading.Thread(target=logs.carried(self._run), name="download", daemon=True).start()
        try:
            while (piece := self._next(limit)) is not None:
                yield piece
        finally:
            self._left.set()

    def _next(self, limit: Limit) -> bytes | None:
        while True:
            if limit.stop.is_set():
                raise Stopped
            if time.monotonic() > limit.ends_at:
                raise AssetUnavailable(f"{shown(self._url)} takes too long.")
            try:
                piece = self._came.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(piece, Exception):
                raise piece
            return piece

    def _run(self) -> None:
        try:
            self._read()
            self._put(None)
        except (InvalidURL, InvalidSchema, MissingSchema):
            self._put(AssetGone(f"{shown(self._url)} is no address we can ask."))
        except (requests.RequestException, HTTPError) as error:
            self._put(_BrokenOff(type(error).__name__))  # its text would show the whole address
        except Exception as error:  # belongs to whoever waits
            self._put(error)

    def _read(self) -> None:
        # As it is stored: what is hashed is not the unpacked form.
        headers = {"Accept-Encoding": "identity"}
        with self._session.get(
            self._url, stream=True, timeout=self._timeout, headers=headers, allow_redirects=False
        ) as response:
            self._check(response)
            while not self._left.is_set() and (piece := response.raw.read1(_PIECE_BYTES)):
                self._put(piece)

    def _check(self, response: requests.Response) -> None:
        status = response.status_code
        if status >= 500 or status in _TRY_AGAIN:
            raise _BrokenOff(f"it answers {status}")
        # Redirects storage never makes, but what is between us and it may. What has run out comes
        # again, with another lease.
        if 300 <= status < 400 or status in _RUN_OUT:
            raise AssetUnavailable(f"{shown(self._url)} answers {status}.")
        if status != 200:
            raise AssetGone(f"{shown(self._url)} answers {status}.")
        announced = response.headers.get("Content-Length", "")
        if announced.isdecimal() and int(announced) > LARGEST_BYTES:
            raise AssetGone(f"{shown(self._url)} announces {announced} bytes, more than we take.")

    def _put(self, piece: bytes | Exception | None) -> None:
        while not self._left.is_set():
            try:
                self._came.put(piece, timeout=_LOOK_SECONDS)
                return
            except queue.Full:
                continue
