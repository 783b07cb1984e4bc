"""How often something happened in a tenant pool between two moments, and how many tokens moved.

`start` belongs to the time that is counted, `end` does not; without an end, all until now.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session, aliased

from models.base import first_id
from models.jobs import SUBMISSION_TIMEOUT, Job
from models.ledger import Transaction, TransactionType, Wallet


@dataclass(frozen=True)
class Tokens:
    credited: int = 0
    reserved: int = 0
    consumed: int = 0
    refunded: int = 0

    @property
    def balance(self) -> int:
        """What is left in the wallets."""
        return self.credited - self.reserved + self.refunded


def orphans(session: Session, *, start: datetime, end: datetime | None) -> int:
    """Jobs that nobody could dispatch in time, and that were refunded for it."""
    query = select(func.count()).where(
        Job.completed_at >= start, Job.error_code == SUBMISSION_TIMEOUT
    )
    return session.scalars(query if end is None else query.where(Job.completed_at < end)).one()


def tokens(session: Session, *, start: datetime | None, end: datetime | None) -> Tokens:
    """By the time in the ids of transactions, along their primary key. No start: from the first."""
    moved = select(Transaction.type, func.sum(Transaction.amount)).group_by(Transaction.type)
    amounts = dict(session.execute(moved.where(*_within(start, end))).tuples().all())
    return Tokens(
        credited=int(amounts.get(TransactionType.PAYMENT_CREDIT, 0)),
        reserved=-int(amounts.get(TransactionType.JOB_RESERVE, 0)),
        consumed=int(session.scalars(_consumed().where(*_within(start, end))).one()),
        refunded=int(amounts.get(TransactionType.JOB_REFUND, 0)),
    )


def _consumed() -> Select[tuple[int]]:
    """A consume is a marker of 0: the tokens are those that its job had reserved."""
    hold = aliased(Transaction)
    return (
        select(func.coalesce(-func.sum(hold.amount), 0))
        .select_from(Transaction)
        .join(hold, hold.job_id == Transaction.job_id)
        .where(Transaction.type == TransactionType.JOB_CONSUME)
        .where(hold.type == TransactionType.JOB_RESERVE)
    )


def _within(start: datetime | None, end: datetime | None) -> list[ColumnElement[bool]]:
    since = [] if start is None else [Transaction.id >= first_id(start)]
    return since if end is None else [*since, Transaction.id < first_id(end)]


def balance(session: Session) -> int:
    """What all wallets hold."""
    return int(session.scalars(select(func.coalesce(func.sum(Wallet.balance), 0))).one())
