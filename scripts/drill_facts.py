"""What the databases of a stack know of a drill: who holds its job, what the audit log tells."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import select

from models.audit import AuditLog
from models.dispatches import Dispatch, DispatchStatus
from models.session import Databases


class DrillFacts:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def holder(self, job_id: UUID) -> str | None:
        query = select(Dispatch.worker_id).where(
            Dispatch.tenant_job_id == job_id, Dispatch.status == DispatchStatus.LEASED
        )
        with self._databases.central(read_only=True) as session:
            return session.scalar(query)

    def audited(self, job_id: UUID, event: str, since: datetime) -> AuditLog | None:
        """The first event of this kind on a job, not before `since`."""
        query = (
            select(AuditLog)
            .join(Dispatch, Dispatch.id == AuditLog.dispatch_id)
            .where(Dispatch.tenant_job_id == job_id, AuditLog.event == event, AuditLog.at >= since)
        )
        with self._databases.central(read_only=True) as session:
            return session.scalar(query.order_by(AuditLog.at).limit(1))

    def told_of(self, worker_id: str, event: str, *, since: datetime) -> AuditLog | None:
        """The first event of this kind on a worker, not before `since`."""
        query = select(AuditLog).where(
            AuditLog.event == event,
            AuditLog.worker_id == worker_id,
            AuditLog.at >= since,
        )
        with self._databases.central(read_only=True) as session:
            return session.scalar(query.order_by(AuditLog.at).limit(1))
