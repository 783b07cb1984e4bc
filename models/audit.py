"""Who did what, when. Written in the same transaction as the change it speaks of."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Index, Select, select, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import logs
from models.base import CentralBase, new_id, utcnow

# Few among many: what a person did is found without a look at all that workers did.
BY_PEOPLE = text("actor <> 'system' AND actor NOT LIKE 'worker:%'")


class AuditLog(CentralBase):
    """No foreign keys: the log outlives what it speaks of."""

    __tablename__ = "worker_audit_logs"
    __table_args__ = (
        Index("ix_worker_audit_logs_at_id", "at", "id"),
        Index("ix_worker_audit_logs_dispatch_id", "dispatch_id"),
        Index("ix_worker_audit_logs_event_at", "event", "at"),
        Index(
            "ix_worker_audit_logs_by_people",
            "actor",
            "at",
            "id",
            postgresql_where=BY_PEOPLE,
            sqlite_where=BY_PEOPLE,
        ),
    )

    id: Mapped[UUID] = new_id()
    at: Mapped[datetime] = mapped_column(default=utcnow)
    event: Mapped[str]  # e.g. job.refund, worker.register
    actor: Mapped[str]  # user:<id>, worker:<id>, system or cli
    tenant_id: Mapped[UUID | None]
    worker_id: Mapped[str | None]
    dispatch_id: Mapped[UUID | None]
    details: Mapped[dict[str, Any]]


def record(
    session: Session,
    event: str,
    *,
    actor: str,
    tenant_id: UUID | None = None,
    worker_id: str | None = None,
    dispatch_id: UUID | None = None,
    trace_id: str | None = None,
    **details: Any,
) -> None:
    """`trace_id` is that of the job; what is about no job has that of the request."""
    trace_id = trace_id or logs.known().get("trace_id")
    session.add(
        AuditLog(
            event=event,
            actor=actor,
            tenant_id=tenant_id,
            worker_id=worker_id,
            dispatch_id=dispatch_id,
            details=details | ({"trace_id": trace_id} if trace_id else {}),
        )
    )


def matching(
    *,
    event: str | None = None,
    actor: str | None = None,
    dispatch_id: UUID | None = None,
    worker_id: str | None = None,
    tenant_id: UUID | None = None,
) -> Select[tuple[AuditLog]]:
    asked = {
        "event": event,
        "actor": actor,
        "dispatch_id": dispatch_id,
        "worker_id": worker_id,
        "tenant_id": tenant_id,
    }
    query = select(AuditLog).filter_by(**{name: one for name, one in asked.items() if one})
    if actor and actor != "system" and not actor.startswith("worker:"):
        query = query.where(BY_PEOPLE)  # says to the database which index will do
    return query
