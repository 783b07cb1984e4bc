"""What a chaos run has to tell: a short summary, or everything that helps to find out why."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import UUID

from sqlalchemy import select

from models.audit import AuditLog
from models.base import Base
from models.dispatches import Dispatch
from models.jobs import Job
from models.ledger import Transaction
from tasks.backend import Backend
from tests.chaos.receiver import Json
from tests.chaos.run import Outcome

MOST_FINDINGS = 40
MOST_JOBS = 6
TAIL_LINES = 25


def summary(outcome: Outcome) -> str:
    rows = [
        ("seed", str(outcome.seed)),
        ("faults", _counted(done.fault.kind for done in outcome.done)),
        ("missed", f"{sum(bool(done.missed) for done in outcome.done)} (it was down)"),
        *_of_orders(outcome),
        *_of_jobs(outcome),
        ("webhooks", _of_webhooks(outcome.heard)),
        ("seconds", ", ".join(f"{name} {spent:.0f}" for name, spent in outcome.seconds.items())),
    ]
    return "\n".join(f"  {name:<10} {told}" for name, told in rows)


def _of_orders(outcome: Outcome) -> Iterator[tuple[str, str]]:
    orders = [order for user in outcome.users for order in user.orders]
    accepted = [order for order in orders if order.is_accepted]
    repeated = sum(len(order.job_ids) - 1 for order in accepted)
    refused = sum(order.is_refused for order in orders)
    forgotten = sum(order.is_forgotten for order in orders)
    yield (
        "orders",
        f"{len(orders)}: {len(accepted)} accepted, {refused} refused, {forgotten} left without "
        f"an answer; {repeated} told again",
    )
    told = sum((user.told for user in outcome.users), Counter[str]())
    yield "answers", _listed(told)


def _of_jobs(outcome: Outcome) -> Iterator[tuple[str, str]]:
    if outcome.rows is None:
        return
    rows = outcome.rows
    yield "jobs", f"{len(rows.jobs)}: {_counted(job.status for job in rows.jobs.values())}"
    yield "errors", _counted(job.error_code for job in rows.jobs.values() if job.error_code)
    attempts = Counter(one.attempts for found in rows.dispatches.values() for one in found)
    yield "attempts", ", ".join(f"{number}: {attempts[number]}" for number in sorted(attempts))


def _of_webhooks(heard: list[Json]) -> str:
    messages = {one["headers"]["webhook-id"] for one in heard}
    return f"{len(messages)} messages, heard {len(heard)} times"


def _counted(things: Iterable[str]) -> str:
    return _listed(Counter(map(str, things)))


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counted.items())) or "none"


def failure(outcome: Outcome, backend: Backend, logs: Path) -> str:
    found = outcome.findings
    told = [f"{len(found)} things are not as they shall be:"]
    told += [f"  {finding}" for finding in found[:MOST_FINDINGS]]
    told += ["", "The faults, as they began:"]
    told += [f"  {done}" for done in outcome.done]
    for job_id in list(dict.fromkeys(one.job_id for one in found if one.job_id))[:MOST_JOBS]:
        told += ["", f"The job {job_id}:", *(f"  {line}" for line in _story(backend, job_id))]
    for log in sorted(logs.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        told += ["", f"How the log of {log.stem} ends:", *(f"  {line}" for line in lines)]
    told += ["", f"Everything is kept in {logs.parent}. The same faults again:"]
    told += [f"  {replay(outcome)}"]
    return "\n".join(told)


def replay(outcome: Outcome) -> str:
    return f"scripts/test chaos --faults {outcome.wanted} --seed {outcome.seed}"


def _story(backend: Backend, job_id: UUID) -> Iterator[str]:
    """A job's rows, and its trail in the audit log."""
    with backend.databases.central(read_only=True) as session:
        central = list(session.scalars(select(Dispatch).where(Dispatch.tenant_job_id == job_id)))
        ids = [one.id for one in central]
        trail = session.scalars(select(AuditLog).where(AuditLog.dispatch_id.in_(ids))).all()
    for pool in backend.databases.pools:
        with backend.databases.pool(pool) as session:
            if job := session.get(Job, job_id):
                yield _row(job)
            booked = select(Transaction).where(Transaction.job_id == job_id)
            yield from map(_row, session.scalars(booked))
    yield from map(_row, central)
    yield from map(_row, sorted(trail, key=lambda row: row.at))


def _row(row: Base) -> str:
    values = {column.key: getattr(row, column.key) for column in row.__table__.columns}
    told = (f"{name}={value}" for name, value in values.items() if value is not None)
    return f"{row.__tablename__}: {' '.join(told)}"
