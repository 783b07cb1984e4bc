"""The keys of everything in the object store, and the types they stand for.

A key ends in the extension of its type and the extension comes from the list below,
never from a user's file name. So a key tells its type by itself, and a store needs
no second record that could disagree with the first.

    uploads/{tenant}/{file}.{ext}                   quarantine: sent by a user, not yet decoded
    tenants/{tenant}/files/{file}.{ext}             accepted input
    tenants/{tenant}/ai-jobs/{job}/output-{uuid}.{ext}
    workflows/{content hash}.json
"""

import re
import unicodedata
from urllib.parse import quote
from uuid import UUID, uuid5

from models.errors import MediaNotAllowed

EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/webp": "webp",
    "image/gif": "gif",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "video/quicktime": "mov",
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/flac": "flac",
    "audio/ogg": "ogg",
    "audio/mp4": "m4a",
    "model/gltf-binary": "glb",
    "model/obj": "obj",
    "text/plain": "txt",
    "application/json": "json",
    "application/octet-stream": "bin",
}
KINDS = {"model": "3d", "application": "file"}  # of other types it is the word before the slash
_TYPES = {extension: mime_type for mime_type, extension in EXTENSIONS.items()}

# Folders have no dot and names have exactly one: "..", hidden files, and a file that is
# also a folder can't be written down. \Z, because $ would let a newline through.
_KEY = re.compile(r"(?:[A-Za-z0-9_-]{1,100}/){1,8}[A-Za-z0-9_-]{1,100}\.([a-z0-9]{2,4})\Z")
_PREFIX = re.compile(r"(?:[A-Za-z0-9_-]{1,100}/){0,8}[A-Za-z0-9_-]{0,100}\Z")

_FILENAME_MAX_CHARACTERS = 120


def upload_key(tenant_id: UUID | str, file_id: UUID | str, mime_type: str) -> str:
    return check(f"uploads/{tenant_id}/{file_id}.{extension(mime_type)}")


def input_key(tenant_id: UUID | str, file_id: UUID | str, mime_type: str) -> str:
    return check(f"tenants/{tenant_id}/files/{file_id}.{extension(mime_type)}")


def output_key(
    tenant_id: UUID | str, job_id: UUID | str, mime_type: str, *, lease_token: UUID, name: str = ""
) -> str:
    """Follows from the lease, so nobody has to remember it between two calls of a worker.

    Another lease has other keys: a worker that lost its own can't overwrite the next one's.
    """
    output = uuid5(lease_token, name)
    prefix = output_prefix(tenant_id, job_id)
    return check(f"{prefix}output-{output}.{extension(mime_type)}")


def output_prefix(tenant_id: UUID | str, job_id: UUID | str) -> str:
    """What the keys of all outputs of a job begin with, those of lost leases too."""
    return check_prefix(f"tenants/{tenant_id}/ai-jobs/{job_id}/")


def graph_key(content_hash: str) -> str:
    return check(f"workflows/{content_hash}.json")


def extension(mime_type: str) -> str:
    try:
        return EXTENSIONS[mime_type]
    except KeyError:
        raise MediaNotAllowed(
            "Files of this type are not stored. Known types: " + ", ".join(EXTENSIONS) + "."
        ) from None


def kind(mime_type: str) -> str:
    """What a person calls it: image, video, audio, text, 3d or file."""
    family = mime_type.partition("/")[0]
    return KINDS.get(family, family)


def check(key: str, mime_type: str | None = None) -> str:
    """The key, if it is one. Keys are ours, so a bad one is a bug here and not a refusal."""
    match = _KEY.match(key)
    if match is None or match[1] not in _TYPES:
        raise ValueError(f"{key!r} is not a key of the object store.")
    if mime_type is not None and mime_type != _TYPES[match[1]]:
        raise ValueError(f"{key!r} can't hold {mime_type!r}.")
    return key


def check_prefix(prefix: str) -> str:
    if not _PREFIX.match(prefix):
        raise ValueError(f"{prefix!r} is not a prefix of keys.")
    return prefix


def type_of(key: str) -> str:
    return _TYPES[check(key).rpartition(".")[2]]


def content_disposition(key: str, filename: str | None) -> str:
    """Always a download, under the name a person knows and the extension of the real type."""
    ending = key.rpartition(".")[2]
    name = unicodedata.normalize("NFC", filename or "")
    # Category C is control characters and the marks that reverse text ("gnp.exe" shown
    # as "exe.png"); the others are path separators, and what Windows can't store.
    name = "".join(c for c in name if unicodedata.category(c)[0] != "C" and c not in '/\\:*?"<>|')
    stem = name.rpartition(".")[0] or name
    stem = stem[:_FILENAME_MAX_CHARACTERS].strip(" .") or key.rpartition("/")[2].split(".")[0]
    plain = "".join(c if c.isascii() and c not in "%;" else "_" for c in stem)
    return (
        f'attachment; filename="{plain}.{ending}"; '
        f"filename*=UTF-8''{quote(f'{stem}.{ending}', safe='')}"
    )
