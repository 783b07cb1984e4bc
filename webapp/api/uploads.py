"""Sending a file: announce it, put it where the answer says, then make a video of it.

The bytes never pass through this API. Up to 100 MB they go in one signed PUT that fixes type
and size; larger files go in parts.
"""

from typing import Any
from uuid import UUID

from marshmallow import Schema, fields, validate

from models import files, media_structure, object_paths
from models.base import row_id
from models.errors import InvalidInput, MediaNotAllowed, NotPossibleNow
from models.files import File, FileStatus
from models.object_store import SignedRequest, part_sizes
from webapp.auth import let_users_in
from webapp.context import backend, principal
from webapp.openapi import ApiBlueprint
from webapp.problems import about
from webapp.shapes import Time, iso

blueprint = let_users_in(
    ApiBlueprint("uploads", __name__, url_prefix="/api/videos/uploads", description=__doc__)
)


class NewUploadSchema(Schema):
    filename = fields.String(
        required=True, validate=validate.Length(1, 255), metadata={"example": "cat.png"}
    )
    mime_type = fields.String(
        required=True,
        validate=validate.Length(1, 100),
        metadata={"example": "image/png", "enum": [*media_structure.NAMES]},
    )
    size_bytes = fields.Integer(
        required=True,
        strict=True,
        validate=validate.Range(1, 2**53),
        metadata={"example": 48_213},
    )


class FileSchema(Schema):
    id = fields.UUID(required=True)
    filename = fields.String(required=True)
    mime_type = fields.String(required=True)
    size_bytes = fields.Integer(required=True)
    status = fields.String(required=True, validate=validate.OneOf([*FileStatus]))
    created_at = Time(required=True)


class PartSchema(Schema):
    number = fields.Integer(required=True)
    url = fields.String(required=True)
    headers = fields.Dict(required=True)
    size_bytes = fields.Integer(required=True)


class UploadTargetSchema(Schema):
    """Either one PUT (`method`, `url`, `headers`), or `parts` with `complete_url`, `abort_url`."""

    method = fields.String()
    url = fields.String()
    headers = fields.Dict()
    parts = fields.List(fields.Nested(PartSchema))
    complete_url = fields.String()
    abort_url = fields.String()
    expires_at = fields.String(required=True)


class UploadSchema(Schema):
    file = fields.Nested(FileSchema, required=True)
    upload = fields.Nested(UploadTargetSchema, required=True)


class SentPartSchema(Schema):
    number = fields.Integer(
        required=True, strict=True, validate=validate.Range(1, 10_000), metadata={"example": 1}
    )
    etag = fields.String(
        required=True,
        validate=validate.Length(1, 200),
        metadata={"example": '"9bb58f26192e4ba00f01e2e7b136bbd8"'},
    )


class SentPartsSchema(Schema):
    parts = fields.List(
        fields.Nested(SentPartSchema), required=True, validate=validate.Length(1, 10_000)
    )


@blueprint.post("")
@blueprint.arguments(NewUploadSchema)
@blueprint.response(201, UploadSchema)
def announce(new: dict[str, Any]) -> dict[str, Any]:
    """Announce a file and learn where to put it"""
    _check_announced(new)
    who, file_id = principal(), row_id()
    key = object_paths.upload_key(who.tenant_id, file_id, new["mime_type"])
    in_parts = new["size_bytes"] > backend().settings.multipart_from_bytes
    upload_id = backend().store.start_multipart(key, new["mime_type"]) if in_parts else None
    with backend().databases.tenant(who.tenant_id) as session:
        file = files.announce(
            session,
            user_id=who.user_id,
            file_id=file_id,
            object_key=key,
            upload_id=upload_id,
            **new,
        )
    return {"file": file, "upload": _parts(file) if in_parts else _single(file)}


def _check_announced(new: dict[str, Any]) -> None:
    if new["mime_type"] not in media_structure.NAMES:
        accepted = f"Accepted types: {', '.join(media_structure.NAMES)}."
        raise MediaNotAllowed(accepted, errors={"mime_type": [accepted]})
    largest = backend().settings.upload_max_bytes
    if new["size_bytes"] > largest:
        raise InvalidInput.field("size_bytes", f"Files of at most {largest} bytes are accepted.")


def _single(file: File) -> dict[str, Any]:
    signed = backend().store.presign_put(
        file.object_key,
        mime_type=file.mime_type,
        size_bytes=file.size_bytes,
        seconds=backend().settings.url_seconds,
    )
    return {
        "method": signed.method,
        "url": signed.url,
        "headers": signed.headers,
        "expires_at": iso(signed.expires_at),
    }


def _parts(file: File) -> dict[str, Any]:
    sizes = part_sizes(file.size_bytes)
    signed = [_part(file, number, size) for number, size in enumerate(sizes, start=1)]
    base = f"{backend().settings.public_url.rstrip('/')}/api/videos/uploads/{file.id}"
    return {
        "parts": [
            {"number": n, "url": part.url, "headers": part.headers, "size_bytes": size}
            for n, (part, size) in enumerate(zip(signed, sizes, strict=True), start=1)
        ],
        "complete_url": f"{base}/complete",
        "abort_url": f"{base}/abort",
        "expires_at": iso(signed[0].expires_at),
    }


def _part(file: File, number: int, size_bytes: int) -> SignedRequest:
    return backend().store.presign_part(
        file.object_key,
        _upload_id(file),
        number,
        size_bytes=size_bytes,
        seconds=backend().settings.url_seconds,
    )


def _upload_id(file: File) -> str:
    if file.upload_id is None:
        raise NotPossibleNow("This file is not being sent in parts.")
    return file.upload_id


@blueprint.post("/<uuid:file_id>/complete")
@blueprint.arguments(SentPartsSchema)
@blueprint.response(200, FileSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def complete(sent: dict[str, Any], file_id: UUID) -> File:
    """All parts are there: join them"""
    file = _own_file(file_id)
    parts = [(part["number"], part["etag"]) for part in sent["parts"]]
    with about("parts"):
        backend().store.finish_multipart(
            file.object_key, _upload_id(file), parts, size_bytes=file.size_bytes
        )
    return file


@blueprint.post("/<uuid:file_id>/abort")
@blueprint.response(204)
@blueprint.alt_response(404, "NOT_FOUND")
def abort(file_id: UUID) -> None:
    """Give up sending a file in parts"""
    file = _own_file(file_id)
    backend().store.abort_multipart(file.object_key, _upload_id(file))


def _own_file(file_id: UUID) -> File:
    with backend().databases.tenant(principal().tenant_id) as session:
        return files.get(session, file_id, user_id=principal().user_id)
