"""Wallets that an order took below a limit, told once until they rise above it again.

    low_below     the limit it fell below; ledger.py clears all three when it rises
    low_since     when that was noticed: names the fall, so that a repeat tells nothing new
    low_told_at   its endpoints were told

Orders know nothing of this: wallets are looked at now and then, and only those of tenants
that want to be told.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from models.ledger import Transaction, TransactionType, Wallet


def note(session: Session, tenant_ids: list[UUID], *, below: int, now: datetime) -> None:
    """Note which of these tenants' wallets are low. A new wallet did not fall.

    One that an order holds at this very moment is looked at the next time: nobody waits.
    """
    theirs = Wallet.tenant_id.in_(tenant_ids)
    spent = select(Transaction.id).where(
        Transaction.user_id == Wallet.user_id,
        Transaction.tenant_id == Wallet.tenant_id,
        Transaction.type == TransactionType.JOB_RESERVE,
    )
    fell = (theirs, Wallet.low_below.is_(None), Wallet.balance < below, spent.exists())
    # The limit may have been lowered since.
    not_low = (theirs, Wallet.low_below.is_not(None), Wallet.balance >= below)
    for which, values in (
        (fell, {"low_below": below, "low_since": now, "low_told_at": None}),
        (not_low, {"low_below": None, "low_since": None, "low_told_at": None}),
    ):
        free = select(Wallet.id).where(*which).with_for_update(skip_locked=True)
        statement = update(Wallet).where(Wallet.id.in_(free.scalar_subquery())).values(values)
        session.execute(statement.execution_options(synchronize_session=False))


def untold(session: Session, tenant_ids: list[UUID], *, limit: int) -> list[Wallet]:
    return list(
        session.scalars(
            select(Wallet)
            .where(Wallet.tenant_id.in_(tenant_ids), Wallet.low_since.is_not(None))
            .where(Wallet.low_told_at.is_(None))
            .limit(limit)
        )
    )


def note_told(session: Session, wallet: Wallet, *, now: datetime) -> None:
    """Unless it rose and fell again meanwhile: then that is yet to be told."""
    session.execute(
        update(Wallet)
        .where(Wallet.id == wallet.id, Wallet.low_since == wallet.low_since)
        .values(low_told_at=now)
    )
