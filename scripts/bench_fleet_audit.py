"""Did a fleet lose anything? What the databases say once all its jobs have ended."""

from collections.abc import Iterator

from sqlalchemy import Select, func, select

from models import ledger_audit
from models.audit import AuditLog
from models.dispatches import Dispatch, DispatchStatus
from models.jobs import Job, JobStatus
from models.session import Databases

#: What the audit log says of a job of which nothing was lost: leased once, completed once.
ORDINARY = {"job.lease", "job.complete"}


def findings(databases: Databases, *, ordered: int) -> list[str]:
    """What is not as it should be, in words; nothing if every job ended once."""
    return [*_in_pools(databases, ordered), *_in_central(databases, ordered)]


def _in_pools(databases: Databases, ordered: int) -> Iterator[str]:
    completed = 0
    for pool in databases.pools:
        with databases.pool(pool, snapshot=True) as session:
            for found in ledger_audit.disagreements(session):
                yield f"{found.subject}: {found.finding}"
            query = select(Job.status, func.count()).group_by(Job.status)
            for status, count in session.execute(query):
                if status == JobStatus.COMPLETED:
                    completed += count
                else:
                    yield f"{count} jobs are {status}"
    if completed != ordered:
        yield f"{ordered} jobs were ordered, {completed} completed"


def _in_central(databases: Databases, ordered: int) -> Iterator[str]:
    of_jobs = AuditLog.event.like("job.%")
    asked: dict[str, Select[tuple[int]]] = {
        "dispatches have not completed": select(func.count()).where(
            Dispatch.status != DispatchStatus.COMPLETED
        ),
        "dispatches needed more than one lease": select(func.count()).where(
            (Dispatch.attempts != 1) | Dispatch.last_error.is_not(None)
        ),
        "audit rows tell of something out of the ordinary": select(func.count()).where(
            of_jobs, AuditLog.event.not_in(ORDINARY)
        ),
        "jobs were not leased once and completed once": select(func.count()).select_from(
            select(AuditLog.dispatch_id)
            .where(of_jobs)
            .group_by(AuditLog.dispatch_id)
            .having((func.count() != 2) | (func.count(func.distinct(AuditLog.event)) != 2))
            .subquery()
        ),
    }
    with databases.central(read_only=True) as session:
        for what, query in asked.items():
            if count := session.scalars(query).one():
                yield f"{count} {what}"
        leased = session.scalars(
            select(func.count(func.distinct(AuditLog.dispatch_id))).where(of_jobs)
        ).one()
    if leased != ordered:
        yield f"{ordered} jobs were ordered, the audit log knows {leased}"
