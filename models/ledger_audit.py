"""Does the money add up? Read-only checks over one tenant pool, for a live database.

Each check is one query that returns what disagrees, so an empty answer is the proof. Run
them in one snapshot (`databases.pool(name, snapshot=True)`): then what changes meanwhile
can't look like a fault.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.orm import Session

from models.jobs import ACTIVE, Job, JobStatus
from models.ledger import Transaction, TransactionType, Wallet

RESERVE, CONSUME, REFUND = (
    TransactionType.JOB_RESERVE,
    TransactionType.JOB_CONSUME,
    TransactionType.JOB_REFUND,
)


@dataclass(frozen=True)
class Disagreement:
    tenant_id: UUID
    subject: str  # wallet:<id> or job:<id>
    finding: str


@dataclass(frozen=True)
class Totals:
    wallets: int
    transactions: int
    jobs: int


def totals(session: Session) -> Totals:
    count = [
        session.scalars(select(func.count()).select_from(table)).one()
        for table in (Wallet, Transaction, Job)
    ]
    return Totals(*count)


def disagreements(session: Session) -> Iterator[Disagreement]:
    yield from _wallets_off_balance(session)
    yield from _jobs_and_money_apart(session)


def _wallets_off_balance(session: Session) -> Iterator[Disagreement]:
    booked = (
        select(Transaction.wallet_id, func.sum(Transaction.amount).label("total"))
        .group_by(Transaction.wallet_id)
        .subquery()
    )
    total = func.coalesce(booked.c.total, 0)
    query = (
        select(Wallet.tenant_id, Wallet.id, Wallet.balance, total)
        .outerjoin(booked, booked.c.wallet_id == Wallet.id)
        .where(or_(Wallet.balance != total, Wallet.balance < 0))
    )
    for tenant_id, wallet_id, balance, amount in session.execute(query):
        yield Disagreement(
            tenant_id,
            f"wallet:{wallet_id}",
            f"The balance is {balance}, its transactions add up to {amount}.",
        )


def _jobs_and_money_apart(session: Session) -> Iterator[Disagreement]:
    """Every job has reserved its price once, and was resolved as its state says."""
    booked = (
        select(
            Transaction.job_id,
            *(_count(kind).label(kind.lower()) for kind in (RESERVE, CONSUME, REFUND)),
            func.sum(_amount_of(RESERVE)).label("reserved"),
            func.sum(_amount_of(REFUND)).label("refunded"),
        )
        .where(Transaction.job_id.is_not(None))
        .group_by(Transaction.job_id)
        .subquery()
    )
    seen = booked.c
    reserves = func.coalesce(seen.job_reserve, 0)
    consumes, refunds = func.coalesce(seen.job_consume, 0), func.coalesce(seen.job_refund, 0)
    finding = case(
        (reserves != 1, "Did not reserve its price exactly once."),
        (seen.reserved != -Job.price_tokens, "Reserved another amount than its price."),
        (consumes + refunds > 1, "Was resolved more than once."),
        (
            and_(Job.status.in_(ACTIVE), consumes + refunds > 0),
            "Was resolved, but has not ended.",
        ),
        (
            and_(Job.status == JobStatus.COMPLETED, consumes != 1),
            "Completed, but its price was not consumed.",
        ),
        (
            and_(Job.status.in_([JobStatus.FAILED, JobStatus.CANCELLED]), refunds != 1),
            "Ended without a result, but was not refunded.",
        ),
        (
            and_(refunds == 1, seen.refunded != Job.price_tokens),
            "Was refunded another amount than its price.",
        ),
    )
    query = (
        select(Job.tenant_id, Job.id, finding)
        .outerjoin(booked, seen.job_id == Job.id)
        .where(finding.is_not(None))
    )
    for tenant_id, job_id, sentence in session.execute(query):
        yield Disagreement(tenant_id, f"job:{job_id}", sentence)


def _count(kind: TransactionType) -> ColumnElement[int]:
    return func.sum(case((Transaction.type == kind, 1), else_=0))


def _amount_of(kind: TransactionType) -> ColumnElement[int]:
    return case((Transaction.type == kind, Transaction.amount), else_=0)
