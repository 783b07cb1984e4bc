"""Whose turn it is: control tasks that may run only once in a period, however many beats ask.

Most of them may run twice at once and take no turn. Each notes when it last finished, so
that a beat or a control worker that died is seen.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, select, true, update
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
    """Whether nobody took this turn within the last so many seconds. Then it is ours."""
    now = now or utcnow()
    free = ControlTurn.taken_at <= now - timedelta(seconds=seconds)
    return _change(session, name, free, taken_at=now) or _begin(session, name, now)


def finish(
    session: Session, name: str, *, done: dict[str, Any], now: datetime | None = None
) -> None:
    """It was done, with or without a turn."""
    now = now or utcnow()
    if not _change(session, name, true(), finished_at=now, done=done):
        _begin(session, name, now)
        _change(session, name, true(), finished_at=now, done=done)


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
