"""Files: what users uploaded and what jobs made. The bytes lie in object storage.

    pending   announced; the client may be uploading. `accept` or the sweeper moves it on
    stored    the bytes are there, were checked, and lie under their final key

A file that is to go is marked first (`deleted_at`), then its object is deleted, then its
row: a crash in between leaves a row that the sweeper finds, never an object without a row.
"""

from datetime import datetime
from enum import StrEnum
from uuid import UUID, uuid4

from sqlalchemy import BigInteger, CheckConstraint, Index, select, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import TenantBase, new_id, one_of, utcnow
from models.errors import NotFound


class FileStatus(StrEnum):
    PENDING = "pending"
    STORED = "stored"


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
            postgresql_where=text("deleted_at IS NOT NULL"),
            sqlite_where=text("deleted_at IS NOT NULL"),
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
        id=file_id or uuid4(),
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


def get(session: Session, file_id: UUID, *, user_id: UUID) -> File:
    file = session.scalar(
        select(File).where(File.id == file_id, File.user_id == user_id, File.deleted_at.is_(None))
    )
    if file is None:
        raise NotFound("There is no such file.")
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
    file = get(session, file_id, user_id=user_id)
    file.status = FileStatus.STORED
    file.object_key, file.content_hash = object_key, content_hash
    file.kind, file.mime_type = kind, mime_type
    file.width, file.height, file.duration_seconds = width, height, duration_seconds
    file.upload_id = None
    session.flush()
    return file
