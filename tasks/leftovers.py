"""Objects of lost leases are removed: outputs that a worker uploaded and no row names.

Each job fails alone (steps.py). What runs is never touched: only jobs are looked at that ended
so long ago that no address for an upload works any more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import select

from models import littered, object_paths
from models.base import utcnow
from models.dispatches import Lease
from models.errors import LeaseLost
from models.jobs import Job
from models.littered import Littered
from tasks.backend import Backend
from tasks.steps import each_by_pool, guarded

MOST = 10_000  # jobs that a run looks at


@dataclass
class Swept:
    jobs_swept: int = 0
    leftovers_deleted: int = 0


def run_once(backend: Backend, *, now: datetime | None = None) -> Swept:
    swept = Swept()
    swept.jobs_swept = guarded(
        "leftovers", partial(_sweep_all, backend, swept, now=now or utcnow())
    )
    return swept


@contextmanager
def refusals_noted(backend: Backend, lease: Lease) -> Iterator[None]:
    """Who is told that a lease is lost may have uploaded under it."""
    try:
        yield
    except LeaseLost:
        with backend.databases.central() as session:
            littered.note_forgotten(session, lease)
        raise


def _sweep_all(backend: Backend, swept: Swept, *, now: datetime) -> int:
    # Twice: an upload that began in time may take as long again.
    before = now - timedelta(seconds=2 * backend.settings.url_seconds)
    with backend.databases.central(read_only=True) as session:
        found = littered.find(session, before=before, limit=MOST)
    return each_by_pool(backend, found, partial(_sweep, backend, swept, now))


def _sweep(backend: Backend, swept: Swept, now: datetime, litter: Littered) -> bool:
    with backend.databases.tenant(litter.tenant_id) as session:
        job = session.scalar(select(Job).where(Job.id == litter.job_id))
    if job is not None and job.is_active:
        return False  # its dispatch says otherwise: orphans.py sees to that first
    if job is not None:  # one that is not there may come back with a backup, and its results too
        swept.leftovers_deleted += _delete_what_nobody_names(backend, job, now)
    with backend.databases.central() as session:
        littered.note_swept(session, litter.dispatch_id, now=now)
    return True


def _delete_what_nobody_names(backend: Backend, job: Job, now: datetime) -> int:
    named = {output.file.object_key for output in job.outputs}
    prefix = object_paths.output_prefix(job.tenant_id, job.id)
    leftovers = [key for key in backend.store.stale(prefix, now) if key not in named]
    for key in leftovers:
        backend.store.delete(key)
    return len(leftovers)
