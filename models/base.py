"""The two families of tables, and the column types they share.

`CentralBase` tables live once, in the central database. `TenantBase` tables live in
every tenant pool, and each of their rows belongs to a tenant. The two never meet in a
join, a foreign key or a transaction.
"""

import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import JSON, CheckConstraint, CursorResult, DateTime, MetaData, Result, String, Uuid
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

# Names are fixed so that migrations and error translation can rely on them.
NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Json = JSON().with_variant(JSONB(), "postgresql")


def utcnow() -> datetime:
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """Always UTC, always aware, on both databases. SQLite itself would forget the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A time without a zone can't be stored.")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, _: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    __abstract__ = True
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime(),
        UUID: Uuid(),
        dict[str, Any]: Json,
        list[Any]: Json,
        str: String(),
    }


class CentralBase(Base):
    __abstract__ = True
    metadata = MetaData(naming_convention=NAMING)


class TenantBase(Base):
    """A row of one tenant. Sessions filter on `tenant_id` by themselves (session.py)."""

    __abstract__ = True
    metadata = MetaData(naming_convention=NAMING)

    tenant_id: Mapped[UUID] = mapped_column(index=False)


def changed_rows(result: Result[Any]) -> int:
    """How many rows an UPDATE, INSERT or DELETE touched."""
    return result.rowcount if isinstance(result, CursorResult) else 0


def change_row(row: Base, values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Set what differs. Returns before and after by column, fit for the audit log."""
    changes = {}
    for column, value in values.items():
        before = getattr(row, column)
        if before != value:
            setattr(row, column, value)
            changes[column] = [before, value]
    return changes


def row_id() -> UUID:
    """A UUID of version 7: random, but for the time in front.

    Rows made one after the other lie side by side in their indexes; with ids that are all
    random, every insert and every lease would touch index pages nobody touched before.
    """
    return _with_time(time.time_ns() // 1_000_000, secrets.randbits(80))


def first_id(at: datetime) -> UUID:
    """What `row_id` makes at this moment or later is no smaller."""
    return _with_time(int(at.timestamp() * 1000), 0)


def made_at(made: UUID) -> datetime | None:
    """When `row_id` made it, to the millisecond; None if it did not."""
    if made.version != 7:
        return None
    return datetime.fromtimestamp((made.int >> 80) / 1000, UTC)


def _with_time(milliseconds: int, rest: int) -> UUID:
    bits = milliseconds << 80 | rest
    bits = bits & ~(0xF << 76) | 0x7 << 76  # version
    bits = bits & ~(0x3 << 62) | 0x2 << 62  # variant
    return UUID(int=bits)


def new_id() -> Mapped[UUID]:
    return mapped_column(primary_key=True, default=row_id)


def one_of(column: str, states: type[StrEnum]) -> CheckConstraint:
    """The database, too, knows which states there are."""
    return CheckConstraint(
        f"{column} IN ({', '.join(repr(str(state)) for state in states)})", name=f"{column}_known"
    )
