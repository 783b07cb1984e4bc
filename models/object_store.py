"""The object store: where uploads, results and workflow graphs live.

One small interface and two stores behind it: S3 (or anything that speaks it) and a
folder on this machine. Clients never send files through our API; they get a signed
request that allows one thing, on one key, for a while.

Both stores promise the same:
- an object appears whole or not at all, and replaces an older one in one step;
- a missing object raises NotFound, a store that does not answer DependencyUnavailable;
- what has been deleted or aborted may be deleted or aborted again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Protocol

from models.errors import DependencyUnavailable, InvalidInput, UploadMissing, UploadSizeMismatch
from models.settings import BadSetting, Settings

# S3 takes at most 10,000 parts, each of at least 5 MiB but for the last.
PART_BYTES = 32 * 1024**2
_PARTS_MAX = 10_000

#: A part as the client reports it: its number, from 1, and the ETag it got for it.
Part = tuple[int, str]


@dataclass(frozen=True)
class SignedRequest:
    """A request a client may send. It adds the Content-Length of its body by itself."""

    method: str
    url: str
    headers: dict[str, str]
    expires_at: datetime


@dataclass(frozen=True)
class Stat:
    size_bytes: int
    mime_type: str
    etag: str  # changes when the object is replaced


class ObjectStore(Protocol):
    def presign_put(
        self, key: str, *, mime_type: str, size_bytes: int | None, seconds: int
    ) -> SignedRequest:
        """Allow one object to be sent. Type and length are part of the signature.

        `size_bytes=None` is for a worker's output, whose size nobody knows yet: the
        length is then not pinned, and has to be looked at when the job completes.
        """

    def presign_get(self, key: str, *, seconds: int, filename: str | None = None) -> str:
        """A download, never shown in the browser as a page of ours."""

    def start_multipart(self, key: str, mime_type: str) -> str:
        """Begin an upload in parts and return its id."""

    def presign_part(
        self, key: str, upload_id: str, number: int, *, size_bytes: int, seconds: int
    ) -> SignedRequest: ...

    def finish_multipart(
        self, key: str, upload_id: str, parts: Sequence[Part], *, size_bytes: int
    ) -> None:
        """Join the parts, if they are those that arrived and add up to `size_bytes`.

        May be repeated: an upload that is already joined is left as it is.
        """

    def abort_multipart(self, key: str, upload_id: str) -> None: ...

    def head(self, key: str) -> Stat | None: ...

    def read(self, key: str) -> bytes:
        """The whole object, for small things such as workflow graphs."""

    def download(self, key: str, file: IO[bytes]) -> Stat:
        """Copy the object into a file; the answer describes exactly what was copied."""

    def write(self, key: str, data: bytes, mime_type: str) -> None: ...

    def copy(self, source: str, target: str, *, etag: str | None = None) -> None:
        """Copy within the store.

        With `etag`, only if the source is still that version (else NotPossibleNow): the
        address of an upload works until it expires, so its owner could put another file
        in the place of the one that was just checked.
        """

    def delete(self, key: str) -> None: ...

    def stale(self, prefix: str, before: datetime) -> Iterator[str]:
        """Keys below a prefix that were last written before a time."""

    def sweep_unfinished(self, before: datetime) -> int:
        """Drop what multipart uploads and crashes left behind before a time; how many."""


def open_store(settings: Settings) -> ObjectStore:
    # Imported here, because boto3 takes a second that a store on disk need not wait for.
    scheme, separator, place = settings.storage_url.partition("://")
    if separator and place and scheme == "file":
        from models.object_store_local import LocalStore

        return LocalStore(
            Path(place),
            public_url=settings.public_url,
            secret_key=settings.secret_key,
            max_bytes=settings.upload_max_bytes,
        )
    bucket, _, prefix = place.partition("/")
    if scheme == "s3" and bucket:
        from models.object_store_s3 import S3Store

        return S3Store(
            bucket, prefix, endpoint_url=settings.s3_endpoint_url, region=settings.s3_region
        )
    raise BadSetting("COMFYFLEET_STORAGE_URL has to be file://FOLDER or s3://BUCKET[/PREFIX].")


def part_sizes(size_bytes: int) -> list[int]:
    """How an upload is divided: equal parts, and the rest in the last."""
    part_bytes = max(PART_BYTES, -(-size_bytes // _PARTS_MAX))
    whole, rest = divmod(size_bytes, part_bytes)
    return [part_bytes] * whole + [rest] * (rest > 0)


def check_parts(arrived: Mapping[Part, int], parts: Sequence[Part], *, size_bytes: int) -> None:
    """Refuse parts that are not those that arrived, or do not make up the whole.

    `arrived` maps a part to its size. An ETag names content, so a part that was sent
    again since the client made its list is noticed too.
    """
    numbers = [number for number, _ in parts]
    if numbers != list(range(1, len(parts) + 1)):
        raise InvalidInput.field("parts", "They have to be numbered 1, 2, 3, ... in this order.")
    for part in parts:
        if part not in arrived:
            raise UploadMissing(f"Part {part[0]} has not arrived, or with another ETag.")
    if (total := sum(arrived[part] for part in parts)) != size_bytes:
        raise UploadSizeMismatch(f"The parts have {total} bytes; {size_bytes} were announced.")


def signed_put(url: str, headers: dict[str, str], seconds: int) -> SignedRequest:
    return SignedRequest("PUT", url, headers, datetime.now(UTC) + timedelta(seconds=seconds))


def bare_etag(etag: str) -> str:
    """Without the quotes that HTTP puts around it, so that both spellings are equal."""
    return etag.strip().strip('"')


def unavailable() -> DependencyUnavailable:
    return DependencyUnavailable(
        "The file storage does not answer. Please try again in a moment.", retry_after_seconds=5
    )
