"""Objects as files in a folder of this machine, for one-machine installations.

An object is the file at its key, so people can open results where they lie. Everything
unfinished lives in `.unfinished/`, which no key can name, and is renamed into place
once it is on disk: a crash leaves nothing that could be read as an object.
"""

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO
from uuid import uuid4

from models import atomic_files, object_paths
from models.errors import NotFound, NotPossibleNow, UploadSizeMismatch
from models.object_store import (
    Part,
    SignedRequest,
    Stat,
    bare_etag,
    check_parts,
    signed_put,
    unavailable,
)
from models.object_store_urls import Grant, UrlSigner

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1024**2
_UPLOAD_ID = re.compile(r"[0-9a-f]{32}\Z")


class LocalStore:
    def __init__(self, folder: Path, *, public_url: str, secret_key: str, max_bytes: int) -> None:
        self._signer = UrlSigner(public_url, secret_key)
        self._root = folder.resolve()
        self._unfinished = self._root / ".unfinished"
        self.max_bytes = max_bytes

    def presign_put(
        self, key: str, *, mime_type: str, size_bytes: int | None, seconds: int
    ) -> SignedRequest:
        object_paths.check(key, mime_type)
        grant = Grant(key=key, mime_type=mime_type, size_bytes=size_bytes)
        url = self._signer.sign("PUT", grant, seconds=seconds)
        return signed_put(url, {"Content-Type": mime_type}, seconds)

    def presign_get(self, key: str, *, seconds: int, filename: str | None = None) -> str:
        grant = Grant(key=object_paths.check(key), filename=filename)
        return self._signer.sign("GET", grant, seconds=seconds)

    def start_multipart(self, key: str, mime_type: str) -> str:
        object_paths.check(key, mime_type)
        upload_id = uuid4().hex
        with _disk():
            self._parts_folder(key, upload_id).mkdir(parents=True)
        return upload_id

    def presign_part(
        self, key: str, upload_id: str, number: int, *, size_bytes: int, seconds: int
    ) -> SignedRequest:
        grant = Grant(
            key=object_paths.check(key), size_bytes=size_bytes, upload_id=upload_id, part=number
        )
        return signed_put(self._signer.sign("PUT", grant, seconds=seconds), {}, seconds)

    def finish_multipart(
        self, key: str, upload_id: str, parts: Sequence[Part], *, size_bytes: int
    ) -> None:
        parts = [(number, bare_etag(etag)) for number, etag in parts]
        folder = self._parts_folder(key, upload_id)
        try:
            with _disk():
                check_parts(_arrived(folder), parts, size_bytes=size_bytes)
                with atomic_files.draft(self._unfinished) as whole:
                    for part in parts:
                        with (folder / _part_name(part)).open("rb") as piece:
                            shutil.copyfileobj(piece, whole, _CHUNK_BYTES)
                    self._publish(whole, key)
        except NotFound:
            # Joined by an earlier request whose answer got lost, or by one just now.
            stat = self.head(key)
            if stat is None or stat.size_bytes != size_bytes:
                raise
        self.abort_multipart(key, upload_id)

    def abort_multipart(self, key: str, upload_id: str) -> None:
        with suppress(NotFound):
            shutil.rmtree(self._parts_folder(key, upload_id), ignore_errors=True)

    def head(self, key: str) -> Stat | None:
        try:
            file, stat = self.open(key)
        except NotFound:
            return None
        file.close()
        return stat

    def open(self, key: str) -> tuple[IO[bytes], Stat]:
        """The file and what it is; it stays this version even if it is replaced meanwhile."""
        with _disk():
            file = self._path(key).open("rb")
        return file, _stat(file, key)

    def read(self, key: str) -> bytes:
        file, _ = self.open(key)
        with file, _disk():
            return file.read()

    def download(self, key: str, file: IO[bytes]) -> Stat:
        source, stat = self.open(key)
        with source, _disk():
            shutil.copyfileobj(source, file, _CHUNK_BYTES)
            file.flush()
        return stat

    def write(self, key: str, data: bytes, mime_type: str) -> None:
        object_paths.check(key, mime_type)
        with _disk(), atomic_files.draft(self._unfinished) as file:
            file.write(data)
            self._publish(file, key)

    def copy(self, source: str, target: str, *, etag: str | None = None) -> None:
        file, stat = self.open(source)
        with file, _disk():
            if etag not in (None, stat.etag):
                raise NotPossibleNow("The file was replaced while it was being checked.")
            with atomic_files.draft(self._unfinished) as copied:
                shutil.copyfileobj(file, copied, _CHUNK_BYTES)
                self._publish(copied, target)

    def delete(self, key: str) -> None:
        with suppress(NotFound), _disk():
            self._path(key).unlink()

    def stale(self, prefix: str, before: datetime) -> Iterator[str]:
        top = self._root / object_paths.check_prefix(prefix).rpartition("/")[0]
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in (Path(folder, name) for name in names):
                key = path.relative_to(self._root).as_posix()
                if key.startswith(prefix) and atomic_files.last_written(path) < before.timestamp():
                    yield key

    def sweep_unfinished(self, before: datetime) -> int:
        swept = 0
        with suppress(FileNotFoundError):
            for path in list(self._unfinished.iterdir()):
                if atomic_files.last_written(path) < before.timestamp():
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
                    swept += 1
        return swept

    def verify(self, method: str, key: str, params: Mapping[str, str]) -> Grant:
        """What a signed address allows; Forbidden if it is not one of ours."""
        return self._signer.verify(method, key, params)

    def receive(
        self, grant: Grant, chunks: Iterable[bytes], *, mime_type: str | None, size: int | None
    ) -> str:
        """Store what a client sends to a signed address and return its ETag.

        `mime_type` and `size` are what the request's headers say. The body is counted
        as well, because a client can go away in the middle of it.
        """
        expected = grant.expected_bytes(mime_type, size, at_most=self.max_bytes)
        md5 = hashlib.md5(usedforsecurity=False)
        received = 0
        with _disk(), atomic_files.draft(self._unfinished) as file:
            for chunk in chunks:
                received += len(chunk)
                if received > expected:
                    break
                md5.update(chunk)
                file.write(chunk)
            if received != expected:
                raise UploadSizeMismatch(f"The body has to have exactly {expected} bytes.")
            if grant.upload_id is not None:
                return self._keep_part(grant, file, md5.hexdigest())
            self._publish(file, grant.key)
            return _stat(file, grant.key).etag

    def _publish(self, file: IO[bytes], key: str) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.publish(file, path, root=self._root)

    def _keep_part(self, grant: Grant, file: IO[bytes], etag: str) -> str:
        # The folder is not made here: without it, the upload was aborted or joined.
        folder = self._parts_folder(grant.key, grant.upload_id or "")
        path = folder / _part_name((grant.part, etag))
        atomic_files.publish(file, path, root=self._root)
        for older in folder.glob(f"{grant.part}-*"):
            if older != path:
                older.unlink(missing_ok=True)
        return etag

    def _parts_folder(self, key: str, upload_id: str) -> Path:
        """Named after the key as well, so that an upload's id is of no use with another key."""
        if not _UPLOAD_ID.match(upload_id):
            raise NotFound("There is no such upload.")
        key_hash = hashlib.sha256(object_paths.check(key).encode()).hexdigest()
        return self._unfinished / f"{upload_id}-{key_hash[:16]}"

    def _path(self, key: str) -> Path:
        path = self._root / object_paths.check(key)
        if path.resolve() != path:
            # No key can climb out of the folder, but a link inside it could.
            logger.warning("The object store refuses the symbolic link at %s", path)
            raise NotFound("There is no such file.")
        return path


def _stat(file: IO[bytes], key: str) -> Stat:
    # A replacement is another file, so its number and time tell versions apart without
    # reading them.
    seen = os.fstat(file.fileno())
    etag = f"{seen.st_ino:x}-{seen.st_mtime_ns:x}-{seen.st_size:x}"
    return Stat(seen.st_size, object_paths.type_of(key), etag)


def _part_name(part: Part) -> str:
    return f"{part[0]}-{part[1]}"


def _arrived(folder: Path) -> dict[Part, int]:
    arrived = {}
    for path in folder.iterdir():
        number, _, etag = path.name.partition("-")
        arrived[int(number), etag] = path.stat().st_size
    return arrived


@contextmanager
def _disk() -> Iterator[None]:
    """Turn what the disk says into our refusals."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound("There is no such file.") from None
    except OSError as error:
        logger.warning("The object store's disk does not answer: %s", error)
        raise unavailable() from error
