"""The token ledger. Transactions are only ever added; nothing here updates or deletes one.

    PAYMENT_CREDIT +N   a payment arrived (once per provider_transaction_id)
    JOB_RESERVE    -N   a job was ordered: its price is taken at once
    JOB_CONSUME     0   the job succeeded: the price is kept
    JOB_REFUND     +N   the job did not: the price is given back

For every wallet, balance = sum of its transactions, and never below zero. A job reserves
once and is resolved once, by consume or by refund, never both: a unique index admits one
of them, however often a worker, a sweeper or a crash repeats the call.

Every function locks the wallet's row first. Whoever holds it is alone with this user's
money and job states until the transaction ends, and nobody can deadlock.
"""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Select,
    UniqueConstraint,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import TenantBase, new_id, one_of, row_id, utcnow
from models.errors import InsufficientTokens, InvalidInput, TransactionIdReused
from models.session import TenantSession


class TransactionType(StrEnum):
    PAYMENT_CREDIT = "PAYMENT_CREDIT"
    JOB_RESERVE = "JOB_RESERVE"
    JOB_CONSUME = "JOB_CONSUME"
    JOB_REFUND = "JOB_REFUND"


MAX_TOKENS = 10**12  # a credit larger than this is a typing mistake

_IS_PAYMENT = text("provider_transaction_id IS NOT NULL")
_RESOLVES = text("type IN ('JOB_CONSUME', 'JOB_REFUND')")


class Wallet(TenantBase):
    __tablename__ = "token_wallets"
    __table_args__ = (
        UniqueConstraint("tenant_id", "user_id"),
        CheckConstraint("balance >= 0", name="balance_not_negative"),
    )

    id: Mapped[UUID] = new_id()
    user_id: Mapped[UUID]
    balance: Mapped[int] = mapped_column(BigInteger, default=0)
    low_below: Mapped[int | None] = mapped_column(BigInteger)  # it fell below this (low_wallets.py)
    low_since: Mapped[datetime | None]
    low_told_at: Mapped[datetime | None]  # its user was told that it is low


class Transaction(TenantBase):
    __tablename__ = "token_transactions"
    __table_args__ = (
        one_of("type", TransactionType),
        UniqueConstraint("job_id", "type"),
        Index(
            "uq_token_transactions_provider_transaction_id",
            "provider_transaction_id",
            unique=True,
            postgresql_where=_IS_PAYMENT,
            sqlite_where=_IS_PAYMENT,
        ),
        Index(
            "uq_token_transactions_job_resolved_once",
            "job_id",
            unique=True,
            postgresql_where=_RESOLVES,
            sqlite_where=_RESOLVES,
        ),
        Index("ix_token_transactions_user_id_created_at_id", "user_id", "created_at", "id"),
        CheckConstraint(
            "(type = 'PAYMENT_CREDIT' AND amount > 0) OR (type = 'JOB_RESERVE' AND amount <= 0)"
            " OR (type = 'JOB_CONSUME' AND amount = 0) OR (type = 'JOB_REFUND' AND amount >= 0)",
            name="amount_fits_type",
        ),
        CheckConstraint(
            "(type = 'PAYMENT_CREDIT') = (provider_transaction_id IS NOT NULL)"
            " AND (type = 'PAYMENT_CREDIT') = (job_id IS NULL)",
            name="reason_named",
        ),
    )

    id: Mapped[UUID] = new_id()
    wallet_id: Mapped[UUID] = mapped_column(ForeignKey("token_wallets.id"))
    user_id: Mapped[UUID]
    type: Mapped[str]
    amount: Mapped[int] = mapped_column(BigInteger)
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey("ai_jobs.id"))
    provider_transaction_id: Mapped[str | None]
    note: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


def lock_wallet(session: Session, *, user_id: UUID) -> Wallet:
    """Lock the user's wallet, making an empty one if this is the first time."""
    query = select(Wallet).where(Wallet.user_id == user_id).with_for_update()
    query = query.execution_options(populate_existing=True)
    if wallet := session.scalar(query):
        return wallet
    if not isinstance(session, TenantSession) or session.tenant_id is None:
        raise LookupError("A wallet is made in its tenant's session only.")
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    session.execute(
        dialect.insert(Wallet)
        .values(id=row_id(), tenant_id=session.tenant_id, user_id=user_id, balance=0)
        .on_conflict_do_nothing(index_elements=["tenant_id", "user_id"])
    )
    return session.scalars(query).one()


def balance(session: Session, *, user_id: UUID) -> int:
    return session.scalar(select(Wallet.balance).where(Wallet.user_id == user_id)) or 0


def movements(user_id: UUID) -> Select[tuple[Transaction]]:
    """Of a user's tokens, the newest first."""
    newest = (Transaction.created_at.desc(), Transaction.id.desc())
    return select(Transaction).where(Transaction.user_id == user_id).order_by(*newest)


def credit(
    session: Session,
    *,
    user_id: UUID,
    amount: int,
    provider_transaction_id: str,
    note: str | None = None,
) -> tuple[Transaction, bool]:
    """Book a payment. The same payment again returns the first booking and False."""
    if not 0 < amount <= MAX_TOKENS:
        raise InvalidInput.field("amount", f"Must be between 1 and {MAX_TOKENS}.")
    wallet = lock_wallet(session, user_id=user_id)
    booked = session.scalar(
        select(Transaction).where(Transaction.provider_transaction_id == provider_transaction_id)
    )
    if booked is not None:
        if (booked.wallet_id, booked.amount) != (wallet.id, amount):
            raise TransactionIdReused(
                f"{provider_transaction_id!r} was booked for another wallet or amount."
            )
        return booked, False
    try:
        with session.begin_nested():
            entry = _append(
                session,
                wallet,
                TransactionType.PAYMENT_CREDIT,
                amount,
                provider_transaction_id=provider_transaction_id,
                note=note,
            )
    except IntegrityError:  # booked for another tenant of this pool, which we can't see
        raise TransactionIdReused(
            f"{provider_transaction_id!r} was booked for another wallet or amount."
        ) from None
    return entry, True


def reserve(session: Session, *, user_id: UUID, job_id: UUID, price_tokens: int) -> Transaction:
    """Take the price of a job. Asking again returns the first hold."""
    wallet = lock_wallet(session, user_id=user_id)
    if held := _find(session, job_id, TransactionType.JOB_RESERVE):
        return held
    if wallet.balance < price_tokens:
        raise InsufficientTokens(required_tokens=price_tokens, balance=wallet.balance)
    return _append(session, wallet, TransactionType.JOB_RESERVE, -price_tokens, job_id=job_id)


def consume(session: Session, *, user_id: UUID, job_id: UUID) -> Transaction:
    """Keep what was reserved: the job succeeded."""
    wallet = lock_wallet(session, user_id=user_id)
    if resolved := _resolution(session, job_id):
        return resolved
    return _append(session, wallet, TransactionType.JOB_CONSUME, 0, job_id=job_id)


def refund(session: Session, *, user_id: UUID, job_id: UUID) -> Transaction:
    """Give back what was reserved: the job did not succeed."""
    wallet = lock_wallet(session, user_id=user_id)
    if resolved := _resolution(session, job_id):
        return resolved
    held = _find(session, job_id, TransactionType.JOB_RESERVE)
    if held is None:
        raise LookupError(f"Job {job_id} never reserved anything, so nothing can be refunded.")
    return _append(session, wallet, TransactionType.JOB_REFUND, -held.amount, job_id=job_id)


def _resolution(session: Session, job_id: UUID) -> Transaction | None:
    return session.scalar(
        select(Transaction).where(
            Transaction.job_id == job_id,
            Transaction.type.in_([TransactionType.JOB_CONSUME, TransactionType.JOB_REFUND]),
        )
    )


def _find(session: Session, job_id: UUID, kind: TransactionType) -> Transaction | None:
    return session.scalar(
        select(Transaction).where(Transaction.job_id == job_id, Transaction.type == kind)
    )


def _append(
    session: Session,
    wallet: Wallet,
    kind: TransactionType,
    amount: int,
    *,
    job_id: UUID | None = None,
    provider_transaction_id: str | None = None,
    note: str | None = None,
) -> Transaction:
    """The only writer. The caller holds the wallet's row lock."""
    entry = Transaction(
        tenant_id=wallet.tenant_id,
        wallet_id=wallet.id,
        user_id=wallet.user_id,
        type=kind,
        amount=amount,
        job_id=job_id,
        provider_transaction_id=provider_transaction_id,
        note=note,
    )
    wallet.balance += amount
    if wallet.low_below is not None and wallet.balance >= wallet.low_below:
        wallet.low_below = wallet.low_since = wallet.low_told_at = None
    session.add(entry)
    session.flush()
    return entry
