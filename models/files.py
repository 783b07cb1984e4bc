"""Files: what users uploaded and what jobs made. The bytes lie in object storage.

    pending   announced; the client may be uploading. `accept` or the sweeper moves it on
    stored    the bytes are there, were checked, and lie under their final key

A file that is to go is marked first (`deleted_at`), then its object is deleted, then that is
noted (`purged_at`): a crash in between leaves a row that the sweeper finds, never an object
that nobody knows of.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Index, select, text, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import TenantBase, new_id, one_of, row_id, utcnow
from models.errors import NotFound


class FileStatus(StrEnum):
    PENDING = "pending"
    STORED = "stored"


_TO_PURGE = text("deleted_at IS NOT NULL AND purged_at IS NULL")


class File(TenantBase):
    __tablename__ = "files"
    __table_args__ = (
        one_of("status", FileStatus),
        CheckConstraint("size_bytes >= 0", name="size_not_negative"),
        Index("ix_files_user_id_created_at", "user_id", "created_at"),
        Index(
            "ix_files_pending",
            "created_at",
            postgresql_where=text("status = 'pending'"),
            sqlite_where=text("status = 'pending'"),
        ),
        Index(
            "ix_files_deleted",
            "deleted_at",
            postgresql_where=_TO_PURGE,
            sqlite_where=_TO_PURGE,
        ),
    )

    id: Mapped[UUID] = new_id()
    user_id: Mapped[UUID]
    filename: Mapped[str]  # as the user calls it; never part of a path
    mime_type: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(default=FileStatus.PENDING)
    object_key: Mapped[str] = mapped_column(unique=True)
    upload_id: Mapped[str | None]  # of a multipart upload
    content_hash: Mapped[str | None]
    kind: Mapped[str | None]
    width: Mapped[int | None]
    height: Mapped[int | None]
    duration_seconds: Mapped[float | None]
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    deleted_at: Mapped[datetime | None]
    purged_at: Mapped[datetime | None]


def announce(
    session: Session,
    *,
    user_id: UUID,
    filename: str,
    mime_type: str,
    size_bytes: int,
    file_id: UUID | None = None,
    object_key: str,
    upload_id: str | None = None,
) -> File:
    file = File(
        id=file_id or row_id(),
        user_id=user_id,
        filename=filename,
        mime_type=mime_type,
        size_bytes=size_bytes,
        object_key=object_key,
        upload_id=upload_id,
    )
    session.add(file)
    session.flush()
    return file


def get(session: Session, file_id: UUID, *, user_id: UUID, lock: bool = False) -> File:
    query = select(File).where(
        File.id == file_id, File.user_id == user_id, File.deleted_at.is_(None)
    )
    file = session.scalar(query.with_for_update() if lock else query)
    if file is None:
        raise NotFound("There is no such file.")
    return file


def to_purge(session: Session, *, limit: int) -> list[File]:
    """Files whose objects are still to be deleted."""
    query = select(File).where(_TO_PURGE).order_by(File.deleted_at).limit(limit)
    return list(session.scalars(query))


def give_up_unfinished(session: Session, *, before: datetime, limit: int) -> list[File]:
    """Mark uploads that were announced and never became a checked file."""
    unfinished = list(
        session.scalars(
            select(File)
            .where(
                File.status == FileStatus.PENDING,
                File.created_at <= before,
                File.deleted_at.is_(None),
            )
            .order_by(File.created_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
    )
    for file in unfinished:
        file.deleted_at = utcnow()
    return unfinished


def mark(session: Session, condemned: Iterable[File]) -> None:
    """They are to go: their objects are deleted next."""
    now = utcnow()
    for file in condemned:
        file.deleted_at = file.deleted_at or now
    session.flush()


def note_purged(session: Session, file_id: UUID) -> None:
    """Its object is gone."""
    session.execute(update(File).where(File.id == file_id).values(purged_at=utcnow()))


@dataclass(frozen=True, kw_only=True)
class Output:
    """A file that a worker has put into object storage, under its final key."""

    name: str
    kind: str
    mime_type: str
    size_bytes: int
    object_key: str
    content_hash: str


def store_output(session: Session, output: Output, *, user_id: UUID) -> File:
    file = File(
        user_id=user_id,
        filename=output.name,
        kind=output.kind,
        mime_type=output.mime_type,
        size_bytes=output.size_bytes,
        object_key=output.object_key,
        content_hash=output.content_hash,
        status=FileStatus.STORED,
    )
    session.add(file)
    return file


def accept(
    session: Session,
    file_id: UUID,
    *,
    user_id: UUID,
    object_key: str,
    content_hash: str,
    kind: str,
    mime_type: str,
    width: int | None = None,
    height: int | None = None,
    duration_seconds: float | None = None,
) -> File:
    """The bytes were checked under their final key: trust them from here on."""
    file = get(session, file_id, user_id=user_id, lock=True)
    file.status = FileStatus.STORED
    file.object_key, file.content_hash = object_key, content_hash
    file.kind, file.mime_type = kind, mime_type
    file.width, file.height, file.duration_seconds = width, height, duration_seconds
    file.upload_id = None
    session.flush()
    return file
