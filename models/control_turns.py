"""Whose turn it is: control tasks that may run only once in a period, however many beats ask.

Most of them may run twice at once and take no turn. Each notes when it last finished, so
that a beat or a control worker that died is seen.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select, true, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import CentralBase, changed_rows, utcnow


class ControlTurn(CentralBase):
    __tablename__ = "control_turns"

    name: Mapped[str] = mapped_column(primary_key=True)
    taken_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    done: Mapped[dict[str, Any]] = mapped_column(default=dict)


def take(session: Session, name: str, *, seconds: float, now: datetime | None = None) -> bool:
    """Whether nobody took this turn within the last so many seconds. Then it is ours.

    A turn that was taken far ahead of now, by a clock that was wrong, is free as well: or else
    nobody would have one until the others get there.
    """
    now, period = now or utcnow(), timedelta(seconds=seconds)
    free = or_(ControlTurn.taken_at <= now - period, ControlTurn.taken_at > now + period)
    return _change(session, name, free, taken_at=now) or _begin(session, name, now)


def keep(session: Session, name: str, *, taken_at: datetime, **values: Any) -> bool:
    """Note something about the turn that we took then; False if others have taken the next."""
    return _change(session, name, ControlTurn.taken_at == taken_at, **values)


def clock(session: Session) -> datetime:
    """The database's, which is one for all machines. With SQLite there is one machine."""
    if session.get_bind().dialect.name != "postgresql":
        return utcnow()
    now: datetime = session.scalars(select(func.clock_timestamp())).one()
    return now.astimezone(UTC)


def finish(
    session: Session, name: str, *, done: dict[str, Any], now: datetime | None = None
) -> None:
    """It was done, with or without a turn."""
    now = now or utcnow()
    if not _change(session, name, true(), finished_at=now, done=done):
        _begin(session, name, now)
        _change(session, name, true(), finished_at=now, done=done)


def find(session: Session, name: str) -> ControlTurn | None:
    return session.get(ControlTurn, name, populate_existing=True)


def all_turns(session: Session) -> list[ControlTurn]:
    return list(session.scalars(select(ControlTurn).order_by(ControlTurn.name)))


def _change(session: Session, name: str, when: ColumnElement[bool], **values: Any) -> bool:
    statement = update(ControlTurn).where(ControlTurn.name == name, when).values(values)
    return changed_rows(session.execute(statement)) == 1


def _begin(session: Session, name: str, now: datetime) -> bool:
    try:
        with session.begin_nested():
            session.add(ControlTurn(name=name, taken_at=now))
    except IntegrityError:  # there is one, maybe since this moment
        return False
    return True
