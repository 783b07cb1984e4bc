"""Signed addresses of the local store: what presigned URLs are to S3.

    {public_url}/storage/{key}?expires=...&type=...&length=...&signature=...

The signature covers the method, the key and every parameter. A parameter that was
added, removed or changed makes another text, so nothing in the address can be edited.
"""

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from models.errors import Forbidden, MediaNotAllowed, UploadSizeMismatch
from models.settings import BadSetting

_SECRET_MIN_CHARACTERS = 32
# Should the same secret ever sign something else, neither can pass for the other.
_PURPOSE = "comfyfleet storage address"


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What one signed address allows."""

    key: str
    mime_type: str | None = None  # None: any; the parts of an upload have no type
    size_bytes: int | None = None
    upload_id: str | None = None
    part: int = 0
    filename: str | None = None

    def expected_bytes(self, mime_type: str | None, size: int | None, *, at_most: int) -> int:
        """How long the body has to be, if the request's headers are the ones allowed."""
        if self.mime_type is not None and mime_type != self.mime_type:
            raise MediaNotAllowed(f"The Content-Type of this upload has to be {self.mime_type}.")
        if size is None:
            raise UploadSizeMismatch("The request has to tell its Content-Length.")
        if self.size_bytes is not None and size != self.size_bytes:
            raise UploadSizeMismatch(f"This upload has to have {self.size_bytes} bytes.")
        if size > at_most:
            raise UploadSizeMismatch(f"An upload may have at most {at_most} bytes.")
        return size


class UrlSigner:
    def __init__(self, public_url: str, secret_key: str) -> None:
        if len(secret_key) < _SECRET_MIN_CHARACTERS:
            raise BadSetting(
                f"COMFYFLEET_SECRET_KEY needs at least {_SECRET_MIN_CHARACTERS} characters: "
                "it signs the addresses of stored files. "
                "`python -c 'import secrets; print(secrets.token_hex(32))'` makes one."
            )
        self._base = public_url.rstrip("/") + "/storage/"
        self._secret = secret_key.encode()

    def sign(self, method: str, grant: Grant, *, seconds: int) -> str:
        wishes = {
            "type": grant.mime_type,
            "length": grant.size_bytes,
            "upload": grant.upload_id,
            "part": grant.part or None,
            "filename": grant.filename,
        }
        params = {name: str(value) for name, value in wishes.items() if value is not None}
        params["expires"] = str(int(time.time()) + seconds)
        params["signature"] = self._signature(method, grant.key, params)
        return f"{self._base}{quote(grant.key)}?{urlencode(params)}"

    def verify(self, method: str, key: str, params: Mapping[str, str]) -> Grant:
        """What the address allows, or Forbidden. Nothing in it is looked at before."""
        signed = {name: value for name, value in params.items() if name != "signature"}
        expected = self._signature("GET" if method == "HEAD" else method, key, signed)
        given = params.get("signature", "")
        # As bytes: compare_digest does not take text that is not ASCII.
        if not hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
            raise Forbidden("This address was not given out by us, or has been changed.")
        if int(signed["expires"]) < time.time():
            raise Forbidden("This address has expired. Ask for a new one.")
        return Grant(
            key=key,
            mime_type=signed.get("type"),
            size_bytes=int(signed["length"]) if "length" in signed else None,
            upload_id=signed.get("upload"),
            part=int(signed.get("part", 0)),
            filename=signed.get("filename"),
        )

    def _signature(self, method: str, key: str, params: Mapping[str, str]) -> str:
        # urlencode escapes & and newlines, so no two sets of parameters look the same.
        fields = (_PURPOSE, method, quote(key), urlencode(sorted(params.items()), errors="replace"))
        return hmac.new(self._secret, "\n".join(fields).encode(), hashlib.sha256).hexdigest()
