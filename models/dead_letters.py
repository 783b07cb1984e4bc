"""Dead letters: jobs that ended for good without a result, kept for a person to look at.

One is kept when a job failed after as many tries as it may have, or because its provider lost
it: nobody's fault that the user could mend. It is written in the transaction in which the
dispatch follows its job, once for each dispatch.

    open       a person should look; `redriven` or `discard` moves it on
    redriven   its work was ordered again, as a new job
    discarded  looked at, nothing to do

Ordering again takes a second database (tasks/redrive.py). Once the new job is paid for it will
run, so a letter that was discarded at that very moment is `redriven` after all.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import audit, dispatches, tries
from models.base import CentralBase, new_id, one_of, utcnow
from models.dispatches import Dispatch
from models.errors import NotFound, NotPossibleNow


class DeadLetterStatus(StrEnum):
    OPEN = "open"  #: a person should look; redrive or discard moves it on
    REDRIVEN = "redriven"  #: the job was ordered again
    DISCARDED = "discarded"  #: looked at, nothing to do


class DeadLetterReason(StrEnum):
    """The error codes of failed jobs that become dead letters."""

    ATTEMPTS_EXHAUSTED = "attempts_exhausted"  #: tried as often as allowed
    PROVIDER_LOST = "provider_lost"  #: a provider took it, and knows nothing of it any more


class DeadLetter(CentralBase):
    __tablename__ = "dead_letters"
    __table_args__ = (
        one_of("status", DeadLetterStatus),
        Index("ix_dead_letters_status_created_at", "status", "created_at"),
        Index("ix_dead_letters_created_at_id", "created_at", "id"),
    )

    id: Mapped[UUID] = new_id()
    dispatch_id: Mapped[UUID] = mapped_column(ForeignKey("ai_job_dispatches.id"), unique=True)
    status: Mapped[str] = mapped_column(default=DeadLetterStatus.OPEN)
    reason: Mapped[str]  # the error code of its job
    error: Mapped[str | None]
    trace: Mapped[str | None]
    history: Mapped[list[Any]] = mapped_column(default=list)  # its tries, see tries.py
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    resolved_at: Mapped[datetime | None]
    resolved_by: Mapped[str | None]
    redriven_job_id: Mapped[UUID | None]


def keep(
    session: Session,
    dispatch: Dispatch,
    *,
    code: str | None,
    error: str | None,
    trace: str | None = None,
) -> DeadLetter | None:
    """The job of this dispatch has just ended with this code. None if no person has to look.

    The caller holds the dispatch's row, and has written what happened into the audit log.
    """
    if code is None or code not in frozenset(DeadLetterReason):
        return None
    if letter := find_by_dispatch(session, dispatch.id):
        return letter  # central was restored from a backup, and the work was ordered again before
    return _write(session, dispatch, reason=code, error=error, trace=trace)


def redriven(session: Session, dispatch_id: UUID, *, job_id: UUID, actor: str) -> DeadLetter:
    """The work of this dispatch was ordered again as this job. Told again, nothing changes.

    One that failed by a fault of its own has no letter until somebody orders it again: then it
    gets one, so that what became of it stands in one place.
    """
    dispatch = dispatches.locked(session, dispatch_id)
    letter = find_by_dispatch(session, dispatch_id)
    if letter is None:
        letter = _write(session, dispatch, reason="by_hand", error=dispatch.last_error)
    if letter.status != DeadLetterStatus.REDRIVEN:
        letter.redriven_job_id = job_id
        _resolve(session, letter, dispatch, DeadLetterStatus.REDRIVEN, actor=actor, note=None)
    return letter


def discard(
    session: Session, letter_id: UUID, *, actor: str, note: str | None = None
) -> DeadLetter:
    """Looked at, nothing to do. Again: the same answer."""
    dispatch = dispatches.locked(session, get(session, letter_id).dispatch_id)
    letter = get(session, letter_id)
    if letter.status == DeadLetterStatus.REDRIVEN:
        raise NotPossibleNow(f"It was ordered again as job {letter.redriven_job_id}.")
    if letter.status == DeadLetterStatus.OPEN:
        _resolve(session, letter, dispatch, DeadLetterStatus.DISCARDED, actor=actor, note=note)
    return letter


def get(session: Session, letter_id: UUID) -> DeadLetter:
    letter = session.get(DeadLetter, letter_id, populate_existing=True)
    if letter is None:
        raise NotFound("There is no such dead letter.")
    return letter


def find_by_dispatch(session: Session, dispatch_id: UUID) -> DeadLetter | None:
    query = select(DeadLetter).where(DeadLetter.dispatch_id == dispatch_id)
    return session.scalar(query.execution_options(populate_existing=True))


def open_by_fleet(session: Session) -> dict[UUID, int]:
    """How many wait for a person, by the fleet that their jobs waited for. Only fleets with any."""
    query = (
        select(Dispatch.fleet_id, func.count())
        .join(DeadLetter, DeadLetter.dispatch_id == Dispatch.id)
        .where(DeadLetter.status == DeadLetterStatus.OPEN)
        .group_by(Dispatch.fleet_id)
    )
    return dict(session.execute(query).tuples().all())


def _write(
    session: Session,
    dispatch: Dispatch,
    *,
    reason: str,
    error: str | None,
    trace: str | None = None,
) -> DeadLetter:
    session.flush()  # its history ends with what the caller has just noted
    letter = DeadLetter(
        dispatch_id=dispatch.id,
        status=DeadLetterStatus.OPEN,
        reason=reason,
        error=error,
        trace=trace,
        history=tries.history(session, dispatch.id),
    )
    session.add(letter)
    session.flush()
    return letter


def _resolve(
    session: Session,
    letter: DeadLetter,
    dispatch: Dispatch,
    status: DeadLetterStatus,
    *,
    actor: str,
    note: str | None,
) -> None:
    event = {
        DeadLetterStatus.REDRIVEN: "dead_letter.redrive",
        DeadLetterStatus.DISCARDED: "dead_letter.discard",
    }[status]
    audit.record(
        session,
        event,
        actor=actor,
        tenant_id=dispatch.tenant_id,
        dispatch_id=dispatch.id,
        dead_letter_id=str(letter.id),
        job_id=str(dispatch.tenant_job_id),
        before=letter.status,
        redriven_job_id=str(letter.redriven_job_id) if letter.redriven_job_id else None,
        note=note,
    )
    letter.status, letter.resolved_at, letter.resolved_by = status, utcnow(), actor
    session.flush()
