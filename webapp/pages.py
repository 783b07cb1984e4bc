"""Cursor pagination: newest first, stable while rows are added.

A cursor is the place of the last row seen, bound to the list (and filter) it came from.
It holds nothing secret and grants nothing: the query it continues is filtered anyway.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from marshmallow import Schema, fields, validate
from sqlalchemy import Select, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from models.errors import InvalidCursor

Row = TypeVar("Row")

DEFAULT_LIMIT = 50
MAX_LIMIT = 200


class PageQuery(Schema):
    limit = fields.Integer(
        load_default=DEFAULT_LIMIT,
        validate=validate.Range(1, MAX_LIMIT),
        metadata={"description": f"How many, at most {MAX_LIMIT}."},
    )
    cursor = fields.String(
        load_default=None,
        validate=validate.Length(1, 512),
        metadata={"description": "`next_cursor` of the page before."},
    )


def page(
    session: Session,
    query: Select[tuple[Row]],
    *,
    newest: tuple[InstrumentedAttribute[datetime], InstrumentedAttribute[UUID]],
    scope: str,
    limit: int,
    cursor: str | None,
) -> tuple[Sequence[Row], str | None]:
    """One page, and the cursor of the next. `scope` names the list and its filter."""
    time, identity = newest
    if cursor is not None:
        last_time, last_id = _read(cursor, scope)
        place = tuple_(literal(last_time, time.type), literal(last_id, identity.type))
        query = query.where(tuple_(time, identity) < place)
    query = query.order_by(time.desc(), identity.desc()).limit(limit + 1)
    rows = session.scalars(query).unique().all()
    if len(rows) <= limit:
        return rows, None
    last = rows[limit - 1]
    return rows[:limit], _write(getattr(last, time.key), getattr(last, identity.key), scope)


def _write(time: datetime, identity: UUID, scope: str) -> str:
    place = json.dumps([time.isoformat(), str(identity), _mark(scope)])
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def _read(cursor: str, scope: str) -> tuple[datetime, UUID]:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        time, identity, mark = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        place = datetime.fromisoformat(time).astimezone(UTC), UUID(identity)
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError):
        raise InvalidCursor("Start again without a cursor.") from None
    if mark != _mark(scope):
        raise InvalidCursor("It belongs to another list or filter. Start again without it.")
    return place


def _mark(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:12]


def page_of(item: type[Schema]) -> type[Schema]:
    """The schema of a page of these."""
    members: dict[str, Any] = {
        "items": fields.List(fields.Nested(item), required=True),
        "next_cursor": fields.String(required=True, allow_none=True),
    }
    name = item.__name__.removesuffix("Schema") + "Page"
    made: type[Schema] = Schema.from_dict(members, name=name)
    return made
