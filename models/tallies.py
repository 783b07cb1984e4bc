"""How often something happened in the central database between two moments.

`start` belongs to the time that is counted, `end` does not; without an end, all until now.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.audit import AuditLog
from models.base import made_at
from models.dispatches import Dispatch
from models.fleets import Fleet
from models.webhooks import WebhookDelivery

MOST = 50_000  # submissions that are looked at in one window


@dataclass(frozen=True)
class Submission:
    """A job that was handed over to the queue, and how long after it was ordered."""

    at: datetime
    milliseconds: float


def submissions(session: Session, *, start: datetime, end: datetime | None) -> list[Submission]:
    """The newest of them. When a job was ordered is told by its id."""
    query = select(Dispatch.created_at, Dispatch.tenant_job_id).where(Dispatch.created_at >= start)
    if end is not None:
        query = query.where(Dispatch.created_at < end)
    query = query.order_by(Dispatch.created_at.desc(), Dispatch.id.desc()).limit(MOST)
    found = []
    for at, job_id in session.execute(query):
        if (ordered_at := made_at(job_id)) is not None:
            waited = (at - ordered_at).total_seconds() * 1000
            found.append(Submission(at, max(waited, 0.0)))
    return found


def leases_expired(
    session: Session, *, stage: str, start: datetime, end: datetime | None
) -> dict[str, int]:
    """By the slug of the fleet."""
    query = (
        select(Fleet.slug, func.count())
        .join(Dispatch, Dispatch.fleet_id == Fleet.id)
        .join(AuditLog, AuditLog.dispatch_id == Dispatch.id)
        .where(Fleet.stage == stage, AuditLog.event == "job.lease_expired", AuditLog.at >= start)
        .group_by(Fleet.slug)
    )
    if end is not None:
        query = query.where(AuditLog.at < end)
    return dict(session.execute(query).tuples().all())


def delivered(session: Session, *, start: datetime, end: datetime | None) -> int:
    """Webhooks that their receivers took."""
    query = select(func.count()).where(WebhookDelivery.delivered_at >= start)
    if end is not None:
        query = query.where(WebhookDelivery.delivered_at < end)
    return session.scalars(query).one()


def noted(session: Session, event: str, *, start: datetime, end: datetime | None) -> int:
    """In the audit log."""
    query = select(func.count()).where(AuditLog.event == event, AuditLog.at >= start)
    return session.scalars(query if end is None else query.where(AuditLog.at < end)).one()
