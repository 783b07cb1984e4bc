"""The tries of a job, put together from the audit log: when, which worker, how it went.

A lease begins a try; the worker's report ends it, or the note that the lease ran out.
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.audit import AuditLog
from models.dispatches import WENT_SILENT

MOST_ROWS = 200  # of the log, the newest: a job may be given back any number of times
LONGEST_ERROR = 2000  # of each try; the last error is kept in full elsewhere

SILENT = "silent"


@dataclass
class Try:
    attempt: int
    worker_id: str | None
    began_at: str
    ended_at: str | None = None
    ending: str | None = None  # complete, fail, cancel, retry, requeue or silent
    error: str | None = None


def history(session: Session, dispatch_id: UUID) -> list[dict[str, Any]]:
    """The tries of a dispatch, oldest first, fit to be kept as JSON."""
    newest = (
        select(AuditLog)
        .where(AuditLog.dispatch_id == dispatch_id, AuditLog.event.like("job.%"))
        .order_by(AuditLog.at.desc(), AuditLog.id.desc())
        .limit(MOST_ROWS)
    )
    tries: list[Try] = []
    for row in reversed(session.scalars(newest).all()):
        _tell(tries, row)
    return [asdict(one) for one in tries]


def _tell(tries: list[Try], row: AuditLog) -> None:
    running = tries[-1] if tries and tries[-1].ending is None else None
    if row.event == "job.lease":
        tries.append(Try(row.details.get("attempt", 0), row.worker_id, _iso(row.at)))
    elif running:
        _end(running, row)


def _end(running: Try, row: AuditLog) -> None:
    running.ended_at = _iso(row.at)
    if row.event == "job.lease_expired":
        running.ending, running.error = SILENT, WENT_SILENT
    else:
        said = row.details.get("error") or row.details.get("reason")
        running.ending = row.event.removeprefix("job.")
        running.error = said[:LONGEST_ERROR] if said else None


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
