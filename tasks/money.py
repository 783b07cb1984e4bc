"""Money that moves by a person's decision: booked in the pool first, then audited in central.

Both can be repeated. A crash between the two leaves money that moved without an audit
row; repeating the call, which is what a person does, moves nothing and writes the row.
"""

from uuid import UUID

from models import audit, jobs, ledger, users
from models.errors import DATABASE_AWAY, AlreadyRefunded, InvalidInput, NotFound
from models.jobs import Job
from models.ledger import Transaction
from models.users import User
from tasks import outcomes
from tasks.backend import Backend


def wallet_of(backend: Backend, user_id: UUID) -> tuple[User, int, int]:
    """Whose it is, what can be spent, and what is held for jobs that have not ended."""
    with backend.databases.central(read_only=True) as session:
        user = users.get(session, user_id)
    with backend.databases.tenant(user.tenant_id) as session:
        balance = ledger.balance(session, user_id=user_id)
        return user, balance, jobs.reserved_tokens(session, user_id=user_id)


def credit(
    backend: Backend,
    *,
    user_id: UUID,
    amount: int,
    provider_transaction_id: str,
    note: str | None,
    actor: str,
) -> tuple[Transaction, bool]:
    """Book a payment. The same payment again is booked once."""
    if provider_transaction_id.startswith(jobs.COMPENSATION):
        raise InvalidInput.field("provider_transaction_id", "This name is kept for refunds.")
    with backend.databases.central(read_only=True) as session:
        user = users.get(session, user_id)
    with backend.databases.tenant(user.tenant_id) as session:
        entry, is_new = ledger.credit(
            session,
            user_id=user_id,
            amount=amount,
            provider_transaction_id=provider_transaction_id,
            note=note,
        )
    with backend.databases.central() as session:
        audit.record(
            session,
            "wallet.credit",
            actor=actor,
            tenant_id=user.tenant_id,
            user_id=str(user_id),
            amount=amount,
            provider_transaction_id=provider_transaction_id,
            note=note,
            repeated=not is_new,
        )
    return entry, is_new


def refund(backend: Backend, *, job_id: UUID, note: str, actor: str) -> Job:
    """Give a job's price back, whatever state it is in; once."""
    tenant_id = find_job(backend, job_id).tenant_id
    try:
        with backend.databases.tenant(tenant_id) as session:
            job = jobs.compensate(session, job_id, note=note)
    except AlreadyRefunded:
        _audit_refund(backend, tenant_id, job_id, note, actor, repeated=True)
        raise
    outcomes.settle(backend, job)
    _audit_refund(backend, tenant_id, job_id, note, actor, repeated=False)
    return job


def _audit_refund(
    backend: Backend, tenant_id: UUID, job_id: UUID, note: str, actor: str, *, repeated: bool
) -> None:
    with backend.databases.central() as session:
        audit.record(
            session,
            "job.refund",
            actor=actor,
            tenant_id=tenant_id,
            job_id=str(job_id),
            note=note,
            repeated=repeated,
        )


def find_job(backend: Backend, job_id: UUID) -> Job:
    """A job of any tenant, by its id alone: for operators."""
    away: Exception | None = None
    for pool in backend.databases.pools:
        try:
            with backend.databases.pool(pool) as session:
                if job := session.get(Job, job_id):
                    return job
        except DATABASE_AWAY as error:  # it may be in another one
            away = error
    raise away or NotFound("There is no such job.")
