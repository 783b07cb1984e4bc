"""What happened to a job, from the API's times, the audit log and what we saw ourselves."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy import select

from models.audit import AuditLog
from models.dispatches import Dispatch
from models.session import Databases
from scripts.demo_customer import Json

TOLD = {
    "job.lease": "leased by {worker}",
    "job.complete": "completed by {worker}",
    "job.fail": "reported as failed by {worker}",
    "job.requeue": "handed back by {worker}",
    "job.expire": "lease of {worker} ran out",
}


@dataclass(frozen=True, order=True)
class Moment:
    at: datetime
    sentence: str


def moments(databases: Databases, job: Json, seen: Iterable[Moment]) -> list[Moment]:
    """In order, from the order to the result."""
    price = job["price_tokens"]
    submitted = Moment(_time(job["created_at"]), f"submitted, {price} tokens reserved")
    settled = Moment(_time(job["completed_at"]), f"result accepted, {price} tokens consumed")
    return sorted([submitted, settled, *audited(databases, UUID(job["id"])), *seen])


def audited(databases: Databases, job_id: UUID) -> list[Moment]:
    """What the audit log tells of a job."""
    with databases.central(read_only=True) as session:
        rows = session.scalars(
            select(AuditLog)
            .join(Dispatch, Dispatch.id == AuditLog.dispatch_id)
            .where(Dispatch.tenant_job_id == job_id)
        ).all()
    return [Moment(row.at.astimezone(UTC), _told(row)) for row in rows]


def _told(row: AuditLog) -> str:
    worker = row.worker_id or row.actor
    sentence = TOLD.get(row.event, f"{row.event} by {{worker}}").format(worker=worker)
    timings = row.details.get("timings") or {}
    spent = ", ".join(
        f"{name.removesuffix('_seconds')} {seconds:.2f} s" for name, seconds in timings.items()
    )
    return f"{sentence} ({spent})" if spent else sentence


def lines(told: list[Moment]) -> list[str]:
    start = told[0].at
    return [f"  {(one.at - start).total_seconds():>7.2f} s  {one.sentence}" for one in told]


def ledger_lines(before: int, after: int, booked: list[Json], names: dict[str, str]) -> list[str]:
    """The wallet before, each transaction of these jobs, the wallet after."""
    rows = [
        f"  {entry['type']:<14} {entry['amount']:>+6}  {names[entry['job_id']]}"
        for entry in reversed(booked)
        if entry["job_id"] in names
    ]
    return [f"  {'before':<14} {before:>6}", *rows, f"  {'after':<14} {after:>6}"]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
