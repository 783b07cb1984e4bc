"""Dispatches: a job waiting for, or held by, a worker. The row is the truth.

    queued     waits; `lease` moves it on (not before `available_at`)
    leased     a worker holds it until `lease_expires_at`; its report moves it on, or, when
               it went silent, the next lease or lost_leases.py
    completed, failed, cancelled   for good

A lease is a UUID token. Every report carries it, and `_held` refuses all others, so a
worker that was given up can't change anything any more, however late it wakes up. The
token of the last lease stays in the row after its report, so that a report that is sent
twice, because its answer got lost, is answered twice and counted once.

In which order waiting rows are served is told in lanes.py.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Select,
    Sequence,
    UniqueConstraint,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import traces
from models.base import CentralBase, changed_rows, new_id, one_of, utcnow
from models.effects import Provider
from models.errors import InvalidInput, LeaseLost, NotFound


class DispatchStatus(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


WENT_SILENT = "The worker went silent."  # an error, for operators
MOST_UPLOADS = 200  # addresses of their own that outputs of one lease may ask for

OPEN = (DispatchStatus.QUEUED, DispatchStatus.LEASED)
ENDED = (DispatchStatus.COMPLETED, DispatchStatus.FAILED, DispatchStatus.CANCELLED)

# Rows that back off stay out of the index that leases walk along: one of them at its
# head would make every lease step over it.
READY = text("status = 'queued' AND available_at IS NULL")
BACKING_OFF = text("status = 'queued' AND available_at IS NOT NULL")
LEASED = text("status = 'leased'")
# What a fleet did lately: how long its jobs take, how many go wrong.
HAS_ENDED = text("status IN ('completed', 'failed', 'cancelled')")
# Few among many: an operator who asks for them must not wait until all others were looked at.
WENT_WRONG = text("status IN ('failed', 'cancelled')")
# Ended, and a lease of it was lost on the way: objects may lie there that nobody knows of.
LITTERED = text(
    "status IN ('completed', 'failed', 'cancelled') AND swept_at IS NULL"
    " AND (last_error IS NOT NULL OR status = 'cancelled')"
)


def _partial(name: str, *columns: Any, where: Any) -> Index:
    return Index(name, *columns, postgresql_where=where, sqlite_where=where)


dispatch_seq = Sequence("ai_job_dispatches_seq", metadata=CentralBase.metadata)


class Dispatch(CentralBase):
    __tablename__ = "ai_job_dispatches"
    __table_args__ = (
        one_of("status", DispatchStatus),
        one_of("provider", Provider),
        CheckConstraint("attempts >= 0", name="attempts_not_negative"),
        CheckConstraint("max_attempts >= 1", name="max_attempts_positive"),
        CheckConstraint("progress >= 0 AND progress <= 1", name="progress_is_a_share"),
        CheckConstraint(
            "(status = 'leased') = (lease_expires_at IS NOT NULL)"
            " AND (status <> 'leased' OR lease_token IS NOT NULL)",
            name="leased_has_a_lease",
        ),
        UniqueConstraint("tenant_id", "tenant_job_id"),
        _partial(
            "ix_ai_job_dispatches_ready",
            "fleet_id",
            "provider",
            text("priority DESC"),
            "turn",
            "seq",
            where=READY,
        ),
        _partial(
            "ix_ai_job_dispatches_users_turns",
            "fleet_id",
            "provider",
            "user_id",
            "priority",
            "turn",
            where=text("status = 'queued'"),
        ),
        _partial("ix_ai_job_dispatches_backing_off", "fleet_id", "available_at", where=BACKING_OFF),
        _partial("ix_ai_job_dispatches_leased", "fleet_id", "lease_expires_at", where=LEASED),
        _partial("ix_ai_job_dispatches_littered", "updated_at", where=LITTERED),
        _partial("ix_ai_job_dispatches_ended", "fleet_id", "updated_at", where=HAS_ENDED),
        _partial("ix_ai_job_dispatches_went_wrong", "created_at", "id", where=WENT_WRONG),
        Index("ix_ai_job_dispatches_created_at_id", "created_at", "id"),
    )

    id: Mapped[UUID] = new_id()
    seq: Mapped[int] = mapped_column(BigInteger, unique=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    tenant_job_id: Mapped[UUID]
    user_id: Mapped[UUID]
    workflow_id: Mapped[UUID] = mapped_column(ForeignKey("workflows.id"))
    fleet_id: Mapped[UUID] = mapped_column(ForeignKey("comfyui_gpu_fleets.id"))
    provider: Mapped[str]
    status: Mapped[str] = mapped_column(default=DispatchStatus.QUEUED)
    priority: Mapped[int] = mapped_column(default=0)
    turn: Mapped[int] = mapped_column(BigInteger)
    attempts: Mapped[int] = mapped_column(default=0)
    max_attempts: Mapped[int] = mapped_column(default=3)
    available_at: Mapped[datetime | None]  # set while backing off
    lease_token: Mapped[UUID | None]
    lease_expires_at: Mapped[datetime | None]
    worker_id: Mapped[str | None]
    cancel_requested_at: Mapped[datetime | None]
    progress: Mapped[float] = mapped_column(default=0.0)
    current_node: Mapped[str | None]
    upload_names: Mapped[list[Any] | None]  # outputs that this lease got addresses of their own for
    last_error: Mapped[str | None]
    duration_seconds: Mapped[float | None]
    traceparent: Mapped[str | None]  # of the request that ordered it, as W3C writes it
    swept_at: Mapped[datetime | None]  # leftovers of lost leases were removed
    leased_at: Mapped[datetime | None]
    lease_lost_at: Mapped[datetime | None]  # when a lease of it last was found to have run out
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    updated_at: Mapped[datetime] = mapped_column(default=utcnow)

    @property
    def ids(self) -> dict[str, Any]:
        """What log lines about it are found by."""
        return {
            "job_id": self.tenant_job_id,
            "dispatch_id": self.id,
            "tenant_id": self.tenant_id,
            "trace_id": self.trace_id,
        }

    @property
    def trace_id(self) -> str | None:
        return traces.id_of(self.traceparent)

    @property
    def was_taken_over(self) -> bool:
        """Whether its lease began where another, of a worker that went silent, ran out."""
        return self.lease_lost_at is not None and self.lease_lost_at == self.leased_at


@dataclass(frozen=True)
class Lease:
    """What a worker shows with every report. Its fleet, if it is known, has to fit too."""

    dispatch_id: UUID
    token: UUID
    fleet_id: UUID | None = None


def _held(
    session: Session, lease: Lease, *, answer_again: tuple[str, ...], lock: bool = True
) -> Dispatch:
    """The dispatch of a lease that is still good. The one place where the rest are refused.

    `answer_again` names the states in which this very lease may have left the row: then
    the report is a repeat, and the caller returns the row as it is.
    """
    query = select(Dispatch).where(Dispatch.id == lease.dispatch_id)
    dispatch = session.scalar(
        (query.with_for_update() if lock else query).execution_options(populate_existing=True)
    )
    if (
        dispatch is None
        or dispatch.lease_token != lease.token
        or lease.fleet_id not in (None, dispatch.fleet_id)
        or dispatch.status not in (DispatchStatus.LEASED, *answer_again)
    ):
        raise LeaseLost("The job was given to somebody else, or has ended. Drop it.")
    return dispatch


def check(session: Session, lease: Lease, *, requeued: bool = False) -> Dispatch:
    """Refuse the report of a stale lease before anything is done for it. Changes nothing.

    Then the job is ended in its tenant's pool, and the dispatch follows the job, by
    `complete`, `fail` or `cancel`: what happened to the lease in between is settled by what
    happened to the job. `requeued`: this lease may have given the row back before.
    """
    again = (DispatchStatus.QUEUED, *ENDED) if requeued else ENDED
    return _held(session, lease, answer_again=again, lock=False)


def extend(
    session: Session,
    lease: Lease,
    *,
    seconds: int,
    progress: float | None = None,
    current_node: str | None = None,
    upload_names: list[str] | None = None,
    now: datetime | None = None,
) -> Dispatch:
    """A heartbeat. An expired lease that nobody has taken yet lives on.

    A row that was cancelled meanwhile is returned as it is: its holder must be told.
    """
    dispatch = _held(session, lease, answer_again=(DispatchStatus.CANCELLED,))
    if dispatch.status == DispatchStatus.CANCELLED:
        return dispatch
    now = now or utcnow()
    dispatch.lease_expires_at = now + timedelta(seconds=seconds)
    dispatch.updated_at = now
    if progress is not None:
        dispatch.progress = max(dispatch.progress, min(progress, 1.0))
    if current_node is not None:
        dispatch.current_node = current_node
    if upload_names:
        known: list[str] = dispatch.upload_names or []
        names = [*known, *(name for name in upload_names if name not in known)]
        if len(names) > MOST_UPLOADS:
            raise InvalidInput.field("outputs", f"At most {MOST_UPLOADS} for each try of a job.")
        dispatch.upload_names = names
    return dispatch


def retry(
    session: Session,
    lease: Lease,
    *,
    error: str,
    backoff_seconds: float = 0,
    now: datetime | None = None,
) -> Dispatch:
    """Something around the job went wrong: try again later, if a try is left.

    On the last try the row is returned as it is, still leased: its job has to be failed.
    """
    dispatch = _held(session, lease, answer_again=(DispatchStatus.QUEUED, *ENDED))
    if dispatch.status == DispatchStatus.LEASED and dispatch.attempts < dispatch.max_attempts:
        _release(dispatch, error=error, pause_seconds=backoff_seconds, now=now or utcnow())
    return dispatch


def requeue(
    session: Session,
    lease: Lease,
    *,
    reason: str,
    pause_seconds: float = 0,
    now: datetime | None = None,
) -> Dispatch:
    """The worker has to go. The job is next again, and the attempt does not count.

    With a pause, others come first meanwhile: what the job needs is away.
    """
    dispatch = _held(session, lease, answer_again=(DispatchStatus.QUEUED, *ENDED))
    if dispatch.status == DispatchStatus.LEASED:
        _release(
            dispatch, error=f"Requeued: {reason}", pause_seconds=pause_seconds, now=now or utcnow()
        )
        dispatch.attempts = max(dispatch.attempts - 1, 0)
    return dispatch


def complete(session: Session, dispatch_id: UUID, *, now: datetime | None = None) -> Dispatch:
    """Its job completed. Whoever else may hold it by now is too late."""
    dispatch = locked(session, dispatch_id)
    now = now or utcnow()
    # Whoever leased it after that did not make the result.
    if (
        dispatch.status == DispatchStatus.LEASED
        and dispatch.leased_at
        and dispatch.leased_at <= now
    ):
        dispatch.duration_seconds = (now - dispatch.leased_at).total_seconds()
    if dispatch.status in OPEN:
        _end(dispatch, DispatchStatus.COMPLETED, now=now)
        dispatch.progress = 1.0
    return dispatch


def fail(session: Session, dispatch_id: UUID, *, error: str) -> Dispatch:
    """Its job failed, for good."""
    dispatch = locked(session, dispatch_id)
    if dispatch.status in OPEN:
        _end(dispatch, DispatchStatus.FAILED, error=error)
    return dispatch


def cancel(session: Session, dispatch_id: UUID, *, now: datetime | None = None) -> Dispatch:
    """Nobody wants it any more. A worker that holds it is told at its next heartbeat."""
    dispatch = locked(session, dispatch_id)
    if dispatch.status in OPEN:
        _end(dispatch, DispatchStatus.CANCELLED, now=now)
        dispatch.cancel_requested_at = dispatch.updated_at
    return dispatch


def abandon(
    session: Session, *, fleet_id: UUID, worker_id: str, now: datetime | None = None
) -> list[UUID]:
    """This worker is gone, or began anew: what it held may be leased again at once."""
    now = now or utcnow()
    statement = (
        update(Dispatch)
        .where(LEASED, Dispatch.fleet_id == fleet_id, Dispatch.worker_id == worker_id)
        .values(lease_expires_at=now, last_error="The worker went away.", updated_at=now)
        .returning(Dispatch.id)
        .execution_options(synchronize_session=False)
    )
    return list(session.scalars(statement))


NOTHING_HELD = "its worker asks for a job and has none: the answer that brought it got lost"


def give_back(
    session: Session, *, fleet_id: UUID, worker_id: str, now: datetime | None = None
) -> list[Dispatch]:
    """This worker holds nothing, it says. What it never got is next again, and does not count.

    What ran out, or was abandoned when the worker began anew after a crash, counts: otherwise
    a job that kills its worker would be tried for ever.
    """
    now = now or utcnow()
    statement = (
        update(Dispatch)
        .where(LEASED, Dispatch.fleet_id == fleet_id, Dispatch.worker_id == worker_id)
        .where(Dispatch.lease_expires_at > now)
        .values(
            status=DispatchStatus.QUEUED,
            lease_token=None,  # nobody can know it
            lease_expires_at=None,
            worker_id=None,
            attempts=Dispatch.attempts - 1,
            last_error=f"Requeued: {NOTHING_HELD}",
            updated_at=now,
        )
        .returning(Dispatch)
        .execution_options(synchronize_session=False)
    )
    return list(session.scalars(statement))


def exhausted(
    session: Session, *, limit: int = 1000, now: datetime | None = None
) -> list[Dispatch]:
    """Leases that ran out on their last attempt. Their jobs must be failed first."""
    return list(session.scalars(_exhausted(now or utcnow()).limit(limit)))


def find_exhausted(session: Session, dispatch_id: UUID, *, now: datetime) -> Dispatch | None:
    """The row, if it is still so."""
    return session.scalar(_exhausted(now).where(Dispatch.id == dispatch_id))


def note_lost(session: Session, dispatch_id: UUID, *, now: datetime) -> bool:
    """Its lease ran out; False if somebody noted that before, or it is held again."""
    statement = (
        update(Dispatch)
        .where(Dispatch.id == dispatch_id, LEASED, Dispatch.lease_expires_at <= now)
        .where(
            or_(
                Dispatch.lease_lost_at.is_(None),
                Dispatch.lease_lost_at < Dispatch.lease_expires_at,
            )
        )
        .values(lease_lost_at=now)
    )
    return changed_rows(session.execute(statement)) == 1


def _exhausted(now: datetime) -> Select[tuple[Dispatch]]:
    return select(Dispatch).where(
        LEASED,
        Dispatch.lease_expires_at <= now,
        Dispatch.attempts >= Dispatch.max_attempts,
    )


def get(session: Session, dispatch_id: UUID) -> Dispatch:
    dispatch = session.get(Dispatch, dispatch_id)
    if dispatch is None:
        raise NotFound("There is no such dispatch.")
    return dispatch


def find_by_job(session: Session, tenant_id: UUID, job_id: UUID) -> Dispatch | None:
    return session.scalar(
        select(Dispatch).where(Dispatch.tenant_id == tenant_id, Dispatch.tenant_job_id == job_id)
    )


def locked(session: Session, dispatch_id: UUID) -> Dispatch:
    dispatch = session.scalar(
        select(Dispatch)
        .where(Dispatch.id == dispatch_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    if dispatch is None:
        raise NotFound("There is no such dispatch.")
    return dispatch


def _release(dispatch: Dispatch, *, error: str, pause_seconds: float, now: datetime) -> None:
    dispatch.status = DispatchStatus.QUEUED
    dispatch.lease_expires_at = dispatch.worker_id = None
    dispatch.available_at = now + timedelta(seconds=pause_seconds) if pause_seconds else None
    dispatch.last_error = error
    dispatch.updated_at = now


def _end(
    dispatch: Dispatch,
    status: DispatchStatus,
    *,
    error: str | None = None,
    now: datetime | None = None,
) -> None:
    dispatch.status = status
    dispatch.lease_expires_at = dispatch.available_at = None
    dispatch.updated_at = now or utcnow()
    if error is not None:
        dispatch.last_error = error
