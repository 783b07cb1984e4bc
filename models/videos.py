"""Videos (images too: the name is the customer's): an upload and what became of it.

uploaded    checked and ready; a job moves it on
processing  a job works on it
completed   the newest job succeeded
failed      the newest job failed or was cancelled; a new job may try again
expired     its files are gone

At rest (uploaded, completed, failed) it has a date at which it expires, if the settings want
that; an order takes the date away. See retention.py.
"""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import ForeignKey, Index, select, text
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from models.base import TenantBase, new_id, one_of, utcnow
from models.errors import NotFound, NotPossibleNow
from models.files import File, FileStatus


class VideoStatus(StrEnum):
    UPLOADED = "uploaded"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"


UNDATED = text(
    "status IN ('uploaded', 'completed', 'failed') AND expires_at IS NULL AND deleted_at IS NULL"
)
RUNS_OUT = text("expires_at IS NOT NULL AND deleted_at IS NULL AND status <> 'expired'")


class Video(TenantBase):
    __tablename__ = "videos"
    __table_args__ = (
        one_of("status", VideoStatus),
        Index("ix_videos_user_id_created_at_id", "user_id", "created_at", "id"),
        Index("ix_videos_undated", "created_at", postgresql_where=UNDATED, sqlite_where=UNDATED),
        Index("ix_videos_runs_out", "expires_at", postgresql_where=RUNS_OUT, sqlite_where=RUNS_OUT),
    )

    id: Mapped[UUID] = new_id()
    user_id: Mapped[UUID]
    title: Mapped[str]
    kind: Mapped[str]
    status: Mapped[str] = mapped_column(default=VideoStatus.UPLOADED)
    original_file_id: Mapped[UUID] = mapped_column(ForeignKey("files.id"), unique=True)
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    expires_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]

    original_file: Mapped[File] = relationship(lazy="joined", innerjoin=True)


def create(session: Session, *, user_id: UUID, file: File, title: str) -> Video:
    """The video of a checked file. Asking again returns the first one."""
    if video := session.scalar(select(Video).where(Video.original_file_id == file.id)):
        return video
    if file.status != FileStatus.STORED or file.kind is None:
        raise NotPossibleNow("The file has not been checked yet.")
    video = Video(user_id=user_id, original_file=file, title=title, kind=file.kind)
    session.add(video)
    session.flush()
    return video


def get(session: Session, video_id: UUID, *, user_id: UUID, lock: bool = False) -> Video:
    query = select(Video).where(
        Video.id == video_id, Video.user_id == user_id, Video.deleted_at.is_(None)
    )
    video = session.scalar(query.with_for_update(of=Video) if lock else query)
    if video is None:
        raise NotFound("There is no such video.")
    return video


def remove(session: Session, video: Video) -> None:
    """Called by jobs.remove_video, which knows whether a job needs it, and its results."""
    video.deleted_at = utcnow()
    session.flush()
