"""Jobs that ended for good without a result, kept for a person to look at."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.base import CentralBase, new_id, one_of, utcnow


class DeadLetterStatus(StrEnum):
    OPEN = "open"  #: a person should look; redrive or discard moves it on
    REDRIVEN = "redriven"  #: the job was ordered again
    DISCARDED = "discarded"  #: looked at, nothing to do


class DeadLetter(CentralBase):
    __tablename__ = "dead_letters"
    __table_args__ = (
        one_of("status", DeadLetterStatus),
        Index("ix_dead_letters_status_created_at", "status", "created_at"),
    )

    id: Mapped[UUID] = new_id()
    dispatch_id: Mapped[UUID] = mapped_column(ForeignKey("ai_job_dispatches.id"), unique=True)
    status: Mapped[str] = mapped_column(default=DeadLetterStatus.OPEN)
    reason: Mapped[str]
    error: Mapped[str | None]
    trace: Mapped[str | None]
    history: Mapped[list[Any]] = mapped_column(default=list)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    resolved_at: Mapped[datetime | None]
    resolved_by: Mapped[str | None]
    redriven_job_id: Mapped[UUID | None]
