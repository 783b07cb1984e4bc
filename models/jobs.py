"""Jobs: what a user ordered and paid for. Rows of the tenant pool.

    submitting  paid for; its dispatch may not exist yet. The submit itself, a repeated
                submit or the reconciler moves it on; after 5 minutes it is failed
    queued      a dispatch waits for a worker; the lease moves it on
    processing  a worker holds it; a report, a cancel or the reconciler moves it on
    completed   the price was consumed
    failed      the price was refunded
    cancelled   the price was refunded

The last three are for good. Money and state change in one transaction, always, and the
wallet's lock comes first, so every change to one user's jobs happens one after the other.
How a job is ordered is told in orders.py.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    UniqueConstraint,
    func,
    literal,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from models import files, ledger, videos
from models.base import TenantBase, new_id, one_of, utcnow
from models.effects import Provider
from models.errors import AlreadyRefunded, NotFound, VideoInUse
from models.files import File, Output
from models.videos import Video, VideoStatus


class JobStatus(StrEnum):
    SUBMITTING = "submitting"
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = (JobStatus.SUBMITTING, JobStatus.QUEUED, JobStatus.PROCESSING)
ENDED = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)

SUBMISSION_TIMEOUT = "submission_timeout"  # nobody could dispatch it in time

IS_ACTIVE = text("status IN ('submitting', 'queued', 'processing')")
_HAS_VIDEO = text("video_id IS NOT NULL")
_IS_SUBMITTING = text("status = 'submitting'")
_IS_UNTOLD = text("untold_since IS NOT NULL")
# Their results have no video to go with (models/retention.py).
HAS_OWN_RESULTS = text("status = 'completed' AND video_id IS NULL AND results_expired_at IS NULL")


class Job(TenantBase):
    __tablename__ = "ai_jobs"
    __table_args__ = (
        one_of("status", JobStatus),
        one_of("provider", Provider),
        CheckConstraint("price_tokens >= 0", name="price_not_negative"),
        CheckConstraint(
            "(status IN ('completed', 'failed', 'cancelled')) = (completed_at IS NOT NULL)",
            name="ended_has_a_time",
        ),
        UniqueConstraint("tenant_id", "user_id", "idempotency_key"),
        Index("ix_ai_jobs_user_id_created_at_id", "user_id", "created_at", "id"),
        Index("ix_ai_jobs_completed_at", "completed_at"),
        Index("ix_ai_jobs_active", "user_id", postgresql_where=IS_ACTIVE, sqlite_where=IS_ACTIVE),
        Index(
            "ix_ai_jobs_submitting",
            "created_at",
            postgresql_where=_IS_SUBMITTING,
            sqlite_where=_IS_SUBMITTING,
        ),
        Index(
            "ix_ai_jobs_untold",
            "untold_since",
            postgresql_where=_IS_UNTOLD,
            sqlite_where=_IS_UNTOLD,
        ),
        Index(
            "ix_ai_jobs_own_results",
            "completed_at",
            postgresql_where=HAS_OWN_RESULTS,
            sqlite_where=HAS_OWN_RESULTS,
        ),
        Index(
            "ix_ai_jobs_video_id", "video_id", postgresql_where=_HAS_VIDEO, sqlite_where=_HAS_VIDEO
        ),
    )

    id: Mapped[UUID] = new_id()
    user_id: Mapped[UUID]
    effect_id: Mapped[UUID]  # central; no foreign key crosses databases
    effect_slug: Mapped[str]
    workflow_id: Mapped[UUID]
    provider: Mapped[str]
    video_id: Mapped[UUID | None] = mapped_column(ForeignKey("videos.id"))
    status: Mapped[str] = mapped_column(default=JobStatus.SUBMITTING)
    price_tokens: Mapped[int]
    idempotency_key: Mapped[str]
    fingerprint: Mapped[str]  # of the order, to tell a repeat from another order
    input_payload: Mapped[dict[str, Any]]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]  # fit for the user's eyes
    provider_job_id: Mapped[str | None]
    refunded_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    results_expired_at: Mapped[datetime | None]  # of a job without a video: those go with it
    untold_since: Mapped[datetime | None]  # it has no result, and central may not know yet

    outputs: Mapped[list["JobOutput"]] = relationship(
        lazy="selectin", order_by="JobOutput.position"
    )

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE

    @property
    def ids(self) -> dict[str, Any]:
        """What log lines about it are found by."""
        return {"job_id": self.id, "tenant_id": self.tenant_id}

    @property
    def origin(self) -> dict[str, Any] | None:
        """Of a job that was ordered again: the `dispatch_id` that failed, and the `actor`."""
        origin: dict[str, Any] | None = self.input_payload.get("origin")
        return origin


class JobOutput(TenantBase):
    """A file that a job made."""

    __tablename__ = "ai_job_outputs"

    job_id: Mapped[UUID] = mapped_column(ForeignKey("ai_jobs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    file_id: Mapped[UUID] = mapped_column(ForeignKey("files.id"), unique=True)

    file: Mapped[File] = relationship(lazy="joined", innerjoin=True)


def reserved_tokens(session: Session, *, user_id: UUID) -> int:
    """What is held for jobs that have not ended."""
    query = select(func.coalesce(func.sum(Job.price_tokens), 0))
    total = session.scalars(query.where(Job.user_id == user_id, Job.status.in_(ACTIVE))).one()
    return int(total)


def get(session: Session, job_id: UUID, *, user_id: UUID | None = None) -> Job:
    query = select(Job).where(Job.id == job_id)
    if user_id is not None:
        query = query.where(Job.user_id == user_id)
    job = session.scalar(query)
    if job is None:
        raise NotFound("There is no such job.")
    return job


def mark_queued(session: Session, job_ids: list[UUID]) -> set[UUID]:
    """Their dispatches exist. Returns those that were still `submitting`."""
    marked = session.scalars(
        update(Job)
        .where(Job.id.in_(job_ids), Job.status == JobStatus.SUBMITTING)
        .values(status=JobStatus.QUEUED)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return set(marked)


def start(session: Session, job_id: UUID, *, now: datetime | None = None) -> Job:
    """A worker has it. A job that ended meanwhile stays as it is: look at its status."""
    job = _lock(session, job_id)
    if job.is_active:
        job.status = JobStatus.PROCESSING
        job.started_at = job.started_at or now or utcnow()
    return job


def back_to_queue(session: Session, job_id: UUID) -> Job:
    """The worker gave it back, or was lost."""
    job = _lock(session, job_id)
    if job.status == JobStatus.PROCESSING:
        job.status = JobStatus.QUEUED
    return job


def complete(
    session: Session,
    job_id: UUID,
    *,
    outputs: Sequence[Output],
    provider_job_id: str | None = None,
    now: datetime | None = None,
) -> Job:
    """The result is there: keep the price. A job that ended already stays as it ended."""
    job = _lock(session, job_id)
    if not job.is_active:
        return job
    ledger.consume(session, user_id=job.user_id, job_id=job.id)
    job.status, job.completed_at = JobStatus.COMPLETED, now or utcnow()
    job.provider_job_id = provider_job_id
    for position, output in enumerate(outputs):
        file = files.store_output(session, output, user_id=job.user_id)
        job.outputs.append(JobOutput(position=position, file=file, tenant_id=job.tenant_id))
    _end_video(session, job, VideoStatus.COMPLETED, error=None)
    session.flush()
    return job


def fail(session: Session, job_id: UUID, *, code: str, message: str) -> Job:
    """No result: give the price back. A job that ended already stays as it ended."""
    return _end_without_result(session, job_id, JobStatus.FAILED, code, message)


def cancel(session: Session, job_id: UUID) -> Job:
    """Nobody wants it any more: give the price back. Ended jobs stay as they ended."""
    return _end_without_result(
        session, job_id, JobStatus.CANCELLED, "cancelled", "The job was cancelled."
    )


COMPENSATION = "refund:"  # how the ledger names a credit that stands for a refund


def compensate(session: Session, job_id: UUID, *, note: str) -> Job:
    """Give the price back by a person's decision, whatever state the job is in; once.

    A job that has not ended is cancelled. One that completed has consumed its price, and
    stays so: the same number of tokens is credited, as a payment named after the job.
    """
    job = _lock(session, job_id)
    if job.refunded_at is not None:
        raise AlreadyRefunded("The tokens of this job were already given back.")
    if job.is_active:
        return cancel(session, job_id)
    if job.price_tokens:
        ledger.credit(
            session,
            user_id=job.user_id,
            amount=job.price_tokens,
            provider_transaction_id=f"{COMPENSATION}{job.id}",
            note=note,
        )
    job.refunded_at = utcnow()
    session.flush()
    return job


def _end_without_result(
    session: Session, job_id: UUID, status: JobStatus, code: str, message: str
) -> Job:
    job = _lock(session, job_id)
    if not job.is_active:
        return job
    ledger.refund(session, user_id=job.user_id, job_id=job.id)
    job.status = status
    job.completed_at = job.refunded_at = utcnow()
    job.untold_since = job.completed_at
    job.error_code, job.error_message = code, message
    _end_video(session, job, VideoStatus.FAILED, error=message)
    session.flush()
    return job


def untold(session: Session, *, before: datetime, limit: int) -> list[Job]:
    """Jobs that ended without a result, and central may never have heard of it."""
    query = select(Job).where(_IS_UNTOLD, Job.untold_since <= before)
    return list(session.scalars(query.order_by(Job.untold_since).limit(limit)))


def note_told(session: Session, job_ids: list[UUID]) -> None:
    """Their dispatches followed them, and whoever listens was told."""
    statement = update(Job).where(Job.id.in_(job_ids)).values(untold_since=None)
    session.execute(statement.execution_options(synchronize_session=False))


def newest_of_videos(session: Session, video_ids: list[UUID]) -> dict[UUID, Job]:
    """The newest job of each of these videos."""
    rows = session.scalars(
        select(Job).where(Job.video_id.in_(video_ids)).order_by(Job.created_at, Job.id)
    )
    return {job.video_id: job for job in rows if job.video_id is not None}


def remove_video(session: Session, video_id: UUID, *, user_id: UUID) -> list[File]:
    """Forget a video. Returns the files that are marked: their objects are to be deleted."""
    ledger.lock_wallet(session, user_id=user_id)  # so that no order can come in between
    video = videos.get(session, video_id, user_id=user_id, lock=True)
    condemned = files_around(session, video)
    if in_use(session, user_id, video.id, *(file.id for file in condemned)):
        raise VideoInUse("Wait for its job to end, or cancel it first.")
    videos.remove(session, video)
    files.mark(session, condemned)
    return condemned


def files_around(session: Session, video: Video) -> list[File]:
    """The upload and all results."""
    found = [video.original_file]
    for job in session.scalars(select(Job).where(Job.video_id == video.id)):
        found += [output.file for output in job.outputs]
    return found


def in_use(session: Session, user_id: UUID, *media: UUID) -> bool:
    """A job that has not ended takes one of these videos or files as an input.

    The caller holds the wallet's lock, so no order can come in between.
    """
    active = select(Job).where(Job.user_id == user_id, Job.status.in_(ACTIVE))
    wanted = {str(one) for one in media}
    return any(
        str(job.video_id) in wanted
        or not wanted.isdisjoint(map(str, job.input_payload["values"].values()))
        for job in session.scalars(active)
    )


def _end_video(session: Session, job: Job, status: VideoStatus, *, error: str | None) -> None:
    """The video follows its newest job; an older one ending late changes nothing."""
    if job.video_id is None:
        return
    newer = select(Job.id).where(
        Job.video_id == job.video_id,
        tuple_(Job.created_at, Job.id) > tuple_(*_place_of(job)),
    )
    if session.scalar(newer.limit(1)):
        return
    session.execute(
        update(Video)
        .where(Video.id == job.video_id, Video.status != VideoStatus.EXPIRED)
        .values(status=status, error=error)
    )


def _place_of(job: Job) -> tuple[Any, Any]:
    return literal(job.created_at, Job.created_at.type), literal(job.id, Job.id.type)


def _lock(session: Session, job_id: UUID) -> Job:
    """Wallet first, then the job: the one order in which locks are taken."""
    job = get(session, job_id)
    ledger.lock_wallet(session, user_id=job.user_id)
    session.refresh(job, with_for_update=True)
    return job
