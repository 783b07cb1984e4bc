"""Leases that ran out with tries left: nothing was heard of their workers. Many at once.

They are read first, then told to the jobs' pools, then taken back: in between a worker may wake
up, or another may lease one of them. So taking back looks anew, and steps over rows that
somebody holds: they are changing anyway.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from models.base import utcnow
from models.dispatches import LEASED, WENT_SILENT, Dispatch, DispatchStatus
from models.fleets import Fleet
from models.tenants import Tenant


@dataclass(frozen=True)
class LostLease:
    dispatch_id: UUID
    job_id: UUID
    fleet_slug: str
    pool: str


def find(session: Session, *, limit: int, now: datetime) -> list[LostLease]:
    query = (
        select(Dispatch.id, Dispatch.tenant_job_id, Fleet.slug, Tenant.pool)
        .join(Fleet, Fleet.id == Dispatch.fleet_id)
        .join(Tenant, Tenant.id == Dispatch.tenant_id)
        .where(LEASED, Dispatch.lease_expires_at <= now)
        .where(Dispatch.attempts < Dispatch.max_attempts)
        .order_by(Dispatch.lease_expires_at)
        .limit(limit)
    )
    return [LostLease(*row) for row in session.execute(query)]


def expire(
    session: Session, dispatch_ids: Iterable[UUID], *, now: datetime | None = None
) -> list[Dispatch]:
    """Queue those of them again whose lease ran out still."""
    now = now or utcnow()
    still = (
        select(Dispatch.id)
        .where(Dispatch.id.in_(dispatch_ids), LEASED, Dispatch.lease_expires_at <= now)
        .where(Dispatch.attempts < Dispatch.max_attempts)
        .with_for_update(skip_locked=True)
    )
    statement = (
        update(Dispatch)
        .where(Dispatch.id.in_(still.scalar_subquery()))
        .values(
            status=DispatchStatus.QUEUED,
            lease_token=None,  # unlike a requeue: a late report of this lease is refused
            lease_expires_at=None,
            worker_id=None,
            lease_lost_at=now,
            last_error=WENT_SILENT,
            updated_at=now,
        )
        .returning(Dispatch)
        .execution_options(synchronize_session=False)
    )
    return list(session.scalars(statement))


def held_after_all(session: Session, dispatch_ids: Iterable[UUID]) -> list[UUID]:
    """The jobs of those that somebody holds: their worker woke up, or another one has them."""
    query = select(Dispatch.tenant_job_id).where(Dispatch.id.in_(dispatch_ids), LEASED)
    return list(session.scalars(query))
