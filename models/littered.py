"""Ended dispatches that lost a lease on the way: outputs may lie there that no row names.

A worker that was lost, or told too late, may have uploaded under the keys of its own lease. Its
addresses work for a while after the end, so it is looked at once they have all run out.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select, true, update
from sqlalchemy.orm import Session

from models.dispatches import LITTERED, Dispatch, Lease


@dataclass(frozen=True)
class Littered:
    dispatch_id: UUID
    tenant_id: UUID
    job_id: UUID


def find(session: Session, *, before: datetime, limit: int) -> list[Littered]:
    """Those that ended before this time and were not swept yet."""
    query = (
        select(Dispatch.id, Dispatch.tenant_id, Dispatch.tenant_job_id)
        .where(LITTERED, Dispatch.updated_at <= before)
        .order_by(Dispatch.updated_at)
        .limit(limit)
    )
    return [Littered(*row) for row in session.execute(query)]


FORGOTTEN = "A worker had a lease that the database does not know."


def note_forgotten(session: Session, lease: Lease) -> None:
    """Leases do not wait for the disk, so a crash of the database may take back one that its
    worker works under. Then nothing else in the row tells that a lease was lost."""
    session.execute(
        update(Dispatch)
        .where(
            Dispatch.id == lease.dispatch_id,
            Dispatch.lease_token.is_distinct_from(lease.token),
            Dispatch.last_error.is_(None),
        )
        .where(true() if lease.fleet_id is None else Dispatch.fleet_id == lease.fleet_id)
        .values(last_error=FORGOTTEN)
    )


def note_swept(session: Session, dispatch_id: UUID, *, now: datetime) -> None:
    session.execute(update(Dispatch).where(Dispatch.id == dispatch_id).values(swept_at=now))
