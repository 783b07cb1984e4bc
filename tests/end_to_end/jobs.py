"""Jobs in a house: order them, see where they are, wait for their end, count the money."""

import itertools
from collections import Counter
from typing import Any
from uuid import UUID

from sqlalchemy import select

from models import ledger_audit
from models.audit import AuditLog
from models.dispatches import Dispatch, DispatchStatus
from models.ledger import Transaction
from tests.end_to_end.house import House
from tests.end_to_end.running_part import until

ENDED = ("completed", "failed", "cancelled")

Json = dict[str, Any]

_NUMBERS = itertools.count(1)


def order_quick(house: House, *, colour: int = 0) -> str:
    return str(house.customer.order("colour-card", colour=colour)["id"])


def order_slow(house: House, *, seconds: float) -> str:
    own = seconds + next(_NUMBERS) / 1000  # the same again would come from ComfyUI's cache
    return str(house.customer.order("slow-invert", house.video_id, seconds=own)["id"])


def dispatch_of(house: House, job_id: str) -> Dispatch | None:
    query = select(Dispatch).where(Dispatch.tenant_job_id == UUID(job_id))
    with house.databases.central(read_only=True) as session:
        return session.scalar(query)


def attempts(house: House, job_id: str) -> int:
    dispatch = dispatch_of(house, job_id)
    assert dispatch is not None
    return dispatch.attempts


def holder(house: House, job_id: str) -> int | None:
    """The number of the worker that holds it."""
    dispatch = dispatch_of(house, job_id)
    if dispatch is None or dispatch.status != DispatchStatus.LEASED:
        return None
    return house.stack.worker_names.index(str(dispatch.worker_id))


def runs_in(house: House, job_id: str, worker: int) -> bool:
    running = house.ask_comfyui(worker, "/queue")["queue_running"]
    return any(f"job-{job_id}-" in str(item) for item in running)


def at_work(house: House, job_id: str) -> int:
    """Wait until a ComfyUI runs it; the number of its worker."""

    def look() -> list[int]:
        found = holder(house, job_id)
        return [found] if found is not None and runs_in(house, job_id, found) else []

    [worker] = until(f"a worker runs {job_id}", look)
    return worker


def end_of(house: House, job_id: str, *, seconds: float = 90.0) -> Json:
    def look() -> Json | None:
        job = house.customer.job(job_id)
        return job if job["status"] in ENDED else None

    return until(f"job {job_id} ends", look, seconds=seconds)


def require_completed(house: House, *job_ids: str, seconds: float = 90.0) -> None:
    for job_id in job_ids:
        job = end_of(house, job_id, seconds=seconds)
        assert (job["status"], job["error"]) == ("completed", None)
        assert len(job["outputs"]) == 1


def events(house: House, job_id: str) -> list[tuple[str, str | None]]:
    """What the audit log has on a job, with the worker's name, in order."""
    return [(row.event, row.worker_id) for row in audited(house, job_id)]


def audited(house: House, job_id: str) -> list[AuditLog]:
    query = select(AuditLog).join(Dispatch, Dispatch.id == AuditLog.dispatch_id)
    with house.databases.central(read_only=True) as session:
        found = session.scalars(query.where(Dispatch.tenant_job_id == UUID(job_id)))
        return sorted(found, key=lambda row: row.at)


def deregistered(house: House, worker: int) -> list[AuditLog]:
    query = select(AuditLog).where(
        AuditLog.event == "worker.deregister",
        AuditLog.worker_id == house.stack.worker_names[worker],
    )
    with house.databases.central(read_only=True) as session:
        return list(session.scalars(query))


def times_posted(house: House, job_id: str) -> int:
    """How often it was given to a ComfyUI, as far as those that run now remember."""
    posted = [
        one
        for number, comfyui in enumerate(house.comfyuis)
        if comfyui.is_running
        for one in house.ask_comfyui(number, "/stand-in/prompts")
    ]
    return sum(f"job-{job_id}-" in str(one["prompt"]) for one in posted)


def check_books(house: House) -> None:
    """Every job ended, paid for once or refunded once, and every wallet adds up."""
    booked: dict[UUID, Counter[str]] = {}
    for pool in house.databases.pools:
        with house.databases.pool(pool, snapshot=True) as session:
            assert list(ledger_audit.disagreements(session)) == []
            for one in session.scalars(select(Transaction).where(Transaction.job_id.is_not(None))):
                booked.setdefault(one.job_id or UUID(int=0), Counter())[one.type] += 1
    for job_id, entries in booked.items():
        resolved = entries["JOB_CONSUME"] + entries["JOB_REFUND"]
        assert (entries["JOB_RESERVE"], resolved) == (1, 1), f"{job_id}: {dict(entries)}"


def cancel_open(house: House) -> None:
    """What a test that failed left behind must not trouble the next one."""
    query = select(Dispatch.tenant_job_id).where(
        Dispatch.status.in_([DispatchStatus.QUEUED, DispatchStatus.LEASED])
    )
    with house.databases.central(read_only=True) as session:
        open_jobs = session.scalars(query).all()
    for job_id in open_jobs:
        house.customer.call("POST", f"/api/ai-jobs/{job_id}/cancel")
