"""Jobs and dispatches that do not fit together any more: what one database knows and the other
does not.

    a job without a dispatch            gets one again, or is failed and refunded
    a job whose dispatch has ended      failed and refunded: a job always ends first
    a dispatch whose job has ended      follows it
    a dispatch without a job            ends

The third is what a crash leaves between the two commits of a cancel. The others take a backup:
one database was restored, and the other knows more, or less. Everything that waits is looked
at, a bounded part in each run.

Either side is read first that is written first: so whatever is missing on the other side is
missing for good, and not on its way.
"""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from models import dispatches, job_batches, jobs, ledger, walks
from models.walks import Lane, OpenJob, WaitingDispatch
from tasks import outcomes, submission
from tasks.backend import Backend
from tasks.steps import each, guarded, in_every_pool, in_pool, walk

LOST = "job_lost"


def mend_jobs(backend: Backend) -> int:
    def in_each(pool: str) -> int:
        def read(after: UUID | None) -> list[OpenJob]:
            with backend.databases.pool(pool) as session:
                return walks.open_jobs(session, after=after)

        return walk(backend, f"jobs of {pool}", read, partial(_compare_jobs, backend))

    return in_every_pool(backend, in_each)


def _compare_jobs(backend: Backend, page: Sequence[OpenJob]) -> int:
    with backend.databases.central(read_only=True) as session:
        states = walks.dispatches_of(session, page)
    lonely = [job for job in page if job.id not in states]
    lost = [job for job in page if states.get(job.id) in dispatches.ENDED]
    return each(lonely, partial(_dispatch_again, backend)) + each(lost, partial(_lose, backend))


def _dispatch_again(backend: Backend, lonely: OpenJob) -> bool:
    """Tenant first: whoever leases it next notes that it runs."""
    with backend.databases.tenant(lonely.tenant_id) as session:
        job = jobs.back_to_queue(session, lonely.id)
    if not job.is_active:
        return False
    if submission.give_dispatch(backend, job):
        return True
    return outcomes.not_started(backend, job.tenant_id, job.id)


def _lose(backend: Backend, lost: OpenJob) -> bool:
    with backend.databases.tenant(lost.tenant_id) as session:
        ledger.lock_wallet(session, user_id=lost.user_id)
        if not jobs.get(session, lost.id).is_active:
            return False  # it ended between the two looks, and its dispatch followed
        jobs.fail(
            session,
            lost.id,
            code=LOST,
            message="The result of the job was lost. Your tokens were given back.",
        )
    with backend.databases.central() as session:
        if dispatch := dispatches.find_by_job(session, lost.tenant_id, lost.id):
            error = f"Its dispatch is {dispatch.status}, and the job knew nothing of it."
            outcomes.note(
                session, "job.fail", dispatch, actor=outcomes.SYSTEM, code=LOST, error=error
            )
    return True


def mend_dispatches(backend: Backend) -> int:
    with backend.databases.central(read_only=True) as session:
        lanes = list(walks.lanes(session, stage=backend.settings.stage))
    return sum(guarded(f"what waits in {lane}", partial(_mend, backend, lane)) for lane in lanes)


def _mend(backend: Backend, lane: Lane) -> int:
    def read(after: UUID | None) -> list[WaitingDispatch]:
        with backend.databases.central(read_only=True) as session:
            return walks.waiting(session, lane, after=after)

    return walk(backend, f"dispatches of {lane}", read, partial(_compare_dispatches, backend))


def _compare_dispatches(backend: Backend, page: Sequence[WaitingDispatch]) -> int:
    by_pool: dict[str, dict[UUID, WaitingDispatch]] = {}
    for dispatch in page:
        by_pool.setdefault(dispatch.pool, {})[dispatch.job_id] = dispatch

    def compare(pool: str) -> int:
        known = by_pool[pool]
        with backend.databases.pool(pool) as session:
            others = job_batches.not_active(session, known)
        return each(others, lambda job_id: outcomes.end(backend, known[job_id].id, others[job_id]))

    return sum(in_pool(backend, pool, compare) for pool in by_pool)
