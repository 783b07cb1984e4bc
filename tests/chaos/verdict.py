"""What a system owes to its users and its owner once all is quiet, whatever was done to it.

Each check reads databases, folders and what users were told, and says what disagrees: no word
is the proof.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from sqlalchemy import select

from models import ledger_audit
from models.dispatches import OPEN, Dispatch
from models.jobs import ACTIVE, Job, JobStatus
from models.ledger import Transaction, TransactionType
from tasks.backend import Backend
from tests.chaos.user import Order, User

RESOLVED = {
    JobStatus.COMPLETED: TransactionType.JOB_CONSUME,
    JobStatus.FAILED: TransactionType.JOB_REFUND,
    JobStatus.CANCELLED: TransactionType.JOB_REFUND,
}


BROKEN = "always-fails"
WITHOUT_BLAME = {"attempts_exhausted", "submission_timeout"}

#: How our processes say that they met something they did not expect.
UNTHOUGHT_OF = (
    "Unexpected error",
    "went wrong in the worker",
    "A heartbeat went wrong",
    "A step of stopping went wrong",
    "Could not look after the provider",
)
MOST_CHARACTERS = 2000


@dataclass(frozen=True)
class Finding:
    sentence: str
    job_id: UUID | None = None

    def __str__(self) -> str:
        return f"{self.sentence} (job {self.job_id})" if self.job_id else self.sentence


@dataclass(frozen=True)
class Rows:
    """The databases, as they are now."""

    jobs: dict[UUID, Job]
    dispatches: dict[UUID, list[Dispatch]]  # by job
    booked: dict[UUID, Counter[str]]  # transactions by job

    @classmethod
    def read(cls, backend: Backend) -> "Rows":
        jobs: dict[UUID, Job] = {}
        booked: dict[UUID, Counter[str]] = defaultdict(Counter)
        for pool in backend.databases.pools:
            with backend.databases.pool(pool) as session:
                jobs |= {job.id: job for job in session.scalars(select(Job))}
                for entry in session.scalars(select(Transaction)):
                    if entry.job_id is not None:
                        booked[entry.job_id][entry.type] += 1
        dispatches: dict[UUID, list[Dispatch]] = defaultdict(list)
        with backend.databases.central(read_only=True) as session:
            for dispatch in session.scalars(select(Dispatch)):
                dispatches[dispatch.tenant_job_id].append(dispatch)
        return cls(jobs, dispatches, booked)


def unrest(rows: Rows) -> Iterator[Finding]:
    """What has not ended yet."""
    for job in rows.jobs.values():
        if job.status in ACTIVE:
            yield Finding(f"Has not ended: it is {job.status}.", job.id)
    for job_id, found in rows.dispatches.items():
        for dispatch in found:
            if dispatch.status in OPEN:
                yield Finding(f"Its dispatch is {dispatch.status}.", job_id)


def about_ledger(backend: Backend) -> Iterator[Finding]:
    """Every wallet adds up, and no job and its money disagree."""
    for pool in backend.databases.pools:
        with backend.databases.pool(pool, snapshot=True) as session:
            for one in ledger_audit.disagreements(session):
                yield Finding(f"{one.subject}: {one.finding}")


def about_bookings(rows: Rows) -> Iterator[Finding]:
    """Every job was paid for once, and its price was consumed or refunded once."""
    for job_id in sorted(rows.booked.keys() - rows.jobs.keys()):
        yield Finding("Was paid for, and does not exist.", job_id)
    for job in rows.jobs.values():
        wanted = Counter({TransactionType.JOB_RESERVE.value: 1})
        if job.status in RESOLVED:
            wanted[RESOLVED[JobStatus(job.status)].value] += 1
        if rows.booked.get(job.id, Counter()) != wanted:
            booked = _listed(rows.booked.get(job.id, Counter()))
            yield Finding(f"It is {job.status}, and was booked {booked}.", job.id)


def about_dispatches(rows: Rows) -> Iterator[Finding]:
    """Every job has one, which ended as the job did. One that was never queued has none."""
    for job_id in sorted(rows.dispatches.keys() - rows.jobs.keys()):
        yield Finding("Has a dispatch, and does not exist.", job_id)
    for job in rows.jobs.values():
        statuses = [one.status for one in rows.dispatches.get(job.id, [])]
        never_queued = not statuses and job.status in (JobStatus.FAILED, JobStatus.CANCELLED)
        if statuses != [job.status] and not never_queued:
            yield Finding(f"It is {job.status}, its dispatches are {statuses}.", job.id)


def about_results(rows: Rows) -> Iterator[Finding]:
    for job in rows.jobs.values():
        if job.status == JobStatus.COMPLETED and not job.outputs:
            yield Finding("Completed, and has no result.", job.id)


def about_failures(rows: Rows) -> Iterator[Finding]:
    """No job is blamed for what was done to the system."""
    for job in rows.jobs.values():
        expected = WITHOUT_BLAME | ({"execution_failed"} if job.effect_slug == BROKEN else set())
        if job.status == JobStatus.FAILED and job.error_code not in expected:
            yield Finding(f"{job.effect_slug} failed with {job.error_code}.", job.id)


def about_logs(logs: Path) -> Iterator[Finding]:
    """Nothing happened that nobody had thought of."""
    for log in sorted(logs.glob("*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if any(words in line for words in UNTHOUGHT_OF):
                yield Finding(f"The log of {log.stem} says: {line[:MOST_CHARACTERS]}")


def about_promises(rows: Rows, users: Sequence[User]) -> Iterator[Finding]:
    """What users were told is true, and stayed true."""
    keys = {job.idempotency_key for job in rows.jobs.values()}
    for user in users:
        if user.broke_off is not None:
            yield Finding(f"{user.name} broke off: {user.broke_off!r}.")
        if not user.is_done:
            yield Finding(f"{user.name} still waits for an answer.")
        for surprise in user.surprises:
            yield Finding(f"{user.name}: {surprise}")
        for order in user.orders:
            yield from _about_order(rows, order)
            if order.is_refused and order.key in keys:
                yield Finding(f"The order {order.key} was refused, and there is a job.")
        for job_id, told in user.ends.items():
            job = rows.jobs.get(UUID(job_id))
            if job is not None and job.status != told:
                yield Finding(f"{user.name} was told {told}, it is {job.status}.", job.id)


def _about_order(rows: Rows, order: Order) -> Iterator[Finding]:
    if order.is_open:
        yield Finding(f"The order {order.key} got no answer.")
    told = sorted({UUID(job_id) for job_id in order.job_ids})
    for job_id in told:
        if job_id not in rows.jobs:
            yield Finding(f"Was accepted as {order.key}, and is lost.", job_id)
        elif rows.jobs[job_id].idempotency_key != order.key:
            yield Finding(f"Was told for {order.key}, and is another order.", job_id)
    if told[1:]:
        yield Finding(f"The key {order.key} gave {len(told)} jobs.", told[0])


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counted.items())) or "nothing"
