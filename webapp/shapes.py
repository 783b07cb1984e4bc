"""Shapes that several resources share."""

from datetime import UTC, datetime
from typing import Any

from marshmallow import Schema, fields, validate

from models.files import File
from models.object_paths import KINDS
from models.workflows import Kind
from webapp.context import backend

BRIEF = 300


def iso(time: datetime | None) -> str | None:
    """ISO 8601 in UTC, with a Z."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z") if time else None


def brief(text: str | None, longest: int = BRIEF) -> str | None:
    """The beginning of what may be long, for lists."""
    return text if text is None or len(text) <= longest else text[: longest - 1] + "…"


class Time(fields.DateTime):
    def _serialize(self, value: Any, *_: Any, **__: Any) -> Any:
        return iso(value)


class OutputSchema(Schema):
    name = fields.String(required=True)
    kind = fields.String(required=True, validate=validate.OneOf([*Kind, *KINDS.values()]))
    mime_type = fields.String(required=True)
    size_bytes = fields.Integer(required=True)
    url = fields.String(required=True)


def download_url(file: File) -> str:
    return backend().store.presign_get(
        file.object_key, seconds=backend().settings.url_seconds, filename=file.filename
    )


def output_shape(file: File) -> dict[str, Any]:
    return {
        "name": file.filename,
        "kind": file.kind,
        "mime_type": file.mime_type,
        "size_bytes": file.size_bytes,
        "url": download_url(file),
    }
