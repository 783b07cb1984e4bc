"""Objects in S3, or in any server that speaks its protocol.

Credentials come from where boto3 finds them (environment, instance role), never from
our settings. A signed address dies with the credentials that signed it, so a role's
session has to outlive COMFYFLEET_URL_SECONDS.
"""

import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from models import object_paths
from models.errors import InvalidInput, NotFound, NotPossibleNow
from models.object_store import (
    Part,
    SignedRequest,
    Stat,
    bare_etag,
    check_parts,
    signed_put,
    unavailable,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1024**2
# One request copies at most 5 GiB, and large copies are faster in pieces.
_COPY_IN_PIECES = TransferConfig(multipart_threshold=1024**3, multipart_chunksize=256 * 1024**2)


class S3Store:
    def __init__(
        self, bucket: str, prefix: str = "", *, endpoint_url: str = "", region: str = "us-east-1"
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._endpoint_url = endpoint_url or None
        self._region = region
        self._lock = threading.Lock()
        self._made: tuple[int, S3Client] | None = None

    def presign_put(
        self, key: str, *, mime_type: str, size_bytes: int | None, seconds: int
    ) -> SignedRequest:
        params = self._at(object_paths.check(key, mime_type)) | {"ContentType": mime_type}
        if size_bytes is not None:
            params["ContentLength"] = size_bytes
        url = self._sign("put_object", params, seconds)
        return signed_put(url, {"Content-Type": mime_type}, seconds)

    def presign_get(self, key: str, *, seconds: int, filename: str | None = None) -> str:
        params = self._at(key) | {
            "ResponseContentDisposition": object_paths.content_disposition(key, filename),
            "ResponseContentType": object_paths.type_of(key),
        }
        return self._sign("get_object", params, seconds)

    def start_multipart(self, key: str, mime_type: str) -> str:
        object_paths.check(key, mime_type)
        with _answers():
            answer = self._client.create_multipart_upload(**self._at(key), ContentType=mime_type)
            return answer["UploadId"]

    def presign_part(
        self, key: str, upload_id: str, number: int, *, size_bytes: int, seconds: int
    ) -> SignedRequest:
        params = self._at(key) | {
            "UploadId": upload_id,
            "PartNumber": number,
            "ContentLength": size_bytes,
        }
        return signed_put(self._sign("upload_part", params, seconds), {}, seconds)

    def finish_multipart(
        self, key: str, upload_id: str, parts: Sequence[Part], *, size_bytes: int
    ) -> None:
        parts = [(number, bare_etag(etag)) for number, etag in parts]
        try:
            check_parts(self._arrived(key, upload_id), parts, size_bytes=size_bytes)
            with _answers():
                self._client.complete_multipart_upload(
                    **self._at(key),
                    UploadId=upload_id,
                    MultipartUpload={
                        "Parts": [{"PartNumber": n, "ETag": f'"{etag}"'} for n, etag in parts]
                    },
                )
        except NotFound:
            # S3 forgets an upload once it is joined. An answer that got lost on the way
            # makes the client ask again, and then this is a success.
            stat = self.head(key)
            if stat is None or stat.size_bytes != size_bytes:
                raise

    def abort_multipart(self, key: str, upload_id: str) -> None:
        with suppress(NotFound), _answers():
            self._client.abort_multipart_upload(**self._at(key), UploadId=upload_id)

    def head(self, key: str) -> Stat | None:
        try:
            with _answers():
                answer = self._client.head_object(**self._at(key))
        except NotFound:
            return None
        return Stat(answer["ContentLength"], answer["ContentType"], bare_etag(answer["ETag"]))

    def read(self, key: str) -> bytes:
        with _answers():
            return self._client.get_object(**self._at(key))["Body"].read()

    def download(self, key: str, file: IO[bytes]) -> Stat:
        with _answers():
            answer = self._client.get_object(**self._at(key))
            shutil.copyfileobj(answer["Body"], file, _CHUNK_BYTES)
        file.flush()
        return Stat(answer["ContentLength"], answer["ContentType"], bare_etag(answer["ETag"]))

    def write(self, key: str, data: bytes, mime_type: str) -> None:
        object_paths.check(key, mime_type)
        with _answers():
            self._client.put_object(**self._at(key), Body=data, ContentType=mime_type)

    def copy(self, source: str, target: str, *, etag: str | None = None) -> None:
        condition = {} if etag is None else {"CopySourceIfMatch": f'"{etag}"'}
        if etag is not None:
            # Some servers ignore the condition; for those this look makes the gap small.
            stat = self.head(source)
            if stat is not None and stat.etag != etag:
                raise NotPossibleNow("The file was replaced while it was being checked.")
        origin, goal = self._at(source), self._at(target)
        with _answers():
            self._client.copy(
                {"Bucket": origin["Bucket"], "Key": origin["Key"]},
                goal["Bucket"],
                goal["Key"],
                ExtraArgs=condition,
                Config=_COPY_IN_PIECES,
            )

    def delete(self, key: str) -> None:
        with suppress(NotFound), _answers():
            self._client.delete_object(**self._at(key))

    def stale(self, prefix: str, before: datetime) -> Iterator[str]:
        below = self._prefix + object_paths.check_prefix(prefix)
        with _answers():
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=below):
                for item in page.get("Contents", []):
                    if item["LastModified"] < before:
                        yield item["Key"].removeprefix(self._prefix)

    def sweep_unfinished(self, before: datetime) -> int:
        swept = 0
        with _answers():
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for upload in page.get("Uploads", []):
                    if upload["Initiated"] < before:
                        self.abort_multipart(
                            upload["Key"].removeprefix(self._prefix), upload["UploadId"]
                        )
                        swept += 1
        return swept

    def _arrived(self, key: str, upload_id: str) -> dict[Part, int]:
        with _answers():
            pages = self._client.get_paginator("list_parts")
            return {
                (part["PartNumber"], bare_etag(part["ETag"])): part["Size"]
                for page in pages.paginate(**self._at(key), UploadId=upload_id)
                for part in page.get("Parts", [])
            }

    def _at(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + object_paths.check(key)}

    def _sign(self, operation: str, params: dict[str, Any], seconds: int) -> str:
        with _answers():  # a role's credentials are fetched over the network
            return self._client.generate_presigned_url(operation, params, seconds)

    @property
    def _client(self) -> "S3Client":
        """One client a process: it is safe between threads, but a fork would share its sockets."""
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                self._made = (os.getpid(), _connect(self._endpoint_url, self._region))
            return self._made[1]


def _connect(endpoint_url: str | None, region: str) -> "S3Client":
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=region,
        config=Config(
            signature_version="s3v4",
            # Other servers rarely have a host name per bucket.
            s3={"addressing_style": "path" if endpoint_url else "virtual"},
            connect_timeout=3,
            read_timeout=30,
            retries={"mode": "standard", "total_max_attempts": 3},
            max_pool_connections=32,
            # boto3's own checksums would have to be sent by whoever uses a signed
            # address, and other servers do not know them.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


@contextmanager
def _answers() -> Iterator[None]:
    """Turn what S3 says into our refusals."""
    try:
        yield
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in {"NoSuchKey", "NoSuchUpload", "NotFound", "404"}:
            raise NotFound("There is no such file.") from None
        if code in {"PreconditionFailed", "412"}:
            raise NotPossibleNow("The file was replaced while it was being checked.") from None
        if code in {"InvalidPart", "InvalidPartOrder", "EntityTooSmall"}:
            raise InvalidInput.field("parts", "These are not the parts that arrived.") from None
        logger.warning("The object store refused: %s", error)
        raise unavailable() from error
    except BotoCoreError as error:
        logger.warning("The object store does not answer: %s", error)
        raise unavailable() from error
