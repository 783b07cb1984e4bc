"""Remove what nobody will come back for: unfinished uploads, deleted files, old deliveries, jobs
that no fleet runs any more (failed and refunded), jobs and dispatches without each other
(orphans.py).

Each step and each pool fails alone (steps.py).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from models import deliveries, files, object_paths, retention, stranded
from models.base import utcnow
from models.dispatches import Dispatch
from models.files import File, FileStatus
from tasks import orphans, outcomes
from tasks.backend import Backend
from tasks.steps import each, each_by_pool, guarded, in_every_pool, is_time_up

BATCH = 1000
DATED = 100  # at once: while they are, orders for these videos wait


@dataclass
class Swept:
    uploads_given_up: int = 0
    objects_deleted: int = 0
    unserved_refunded: int = 0
    deliveries_forgotten: int = 0
    jobs_mended: int = 0
    dispatches_mended: int = 0


def run_once(backend: Backend, *, now: datetime | None = None) -> Swept:
    now = now or utcnow()
    before = now - timedelta(seconds=backend.settings.upload_timeout_seconds)
    swept = Swept(
        unserved_refunded=guarded("unserved jobs", partial(refund_unserved, backend, now=now)),
        jobs_mended=orphans.mend_jobs(backend),
        dispatches_mended=guarded("dispatches", partial(orphans.mend_dispatches, backend)),
        uploads_given_up=in_every_pool(backend, partial(_give_up_uploads, backend, before=before)),
        objects_deleted=in_every_pool(backend, partial(purge_deleted, backend)),
    )
    in_every_pool(backend, partial(date_videos, backend))
    swept.objects_deleted += guarded(
        "the quarantine", partial(_clear_quarantine, backend, before=before)
    )
    guarded("unfinished objects", partial(backend.store.sweep_unfinished, before))
    swept.deliveries_forgotten = guarded(
        "old deliveries", partial(_forget_deliveries, backend, now=now)
    )
    return swept


def refund_unserved(backend: Backend, *, now: datetime) -> int:
    """Their workflow was taken from its last fleet in the moment in which they were ordered."""
    before = now - timedelta(seconds=backend.settings.submitting_timeout_seconds)
    with backend.databases.central(read_only=True) as session:
        waiting = stranded.unserved(
            session, stage=backend.settings.stage, before=before, limit=BATCH
        )
    return each_by_pool(backend, waiting, partial(_refund_unserved, backend))


def _refund_unserved(backend: Backend, dispatch: Dispatch) -> bool:
    error = "No fleet of this stage runs its workflow."
    return outcomes.not_started(backend, dispatch.tenant_id, dispatch.tenant_job_id, error=error)


def date_videos(backend: Backend, pool: str) -> int:
    """Those that came to rest since the last time get the date at which they expire."""
    total = 0
    while not is_time_up():
        with backend.databases.pool(pool) as session:
            dated = retention.date(session, backend.settings, limit=DATED)
        total += dated
        if dated < DATED:
            break
    return total


def _give_up_uploads(backend: Backend, pool: str, *, before: datetime) -> int:
    with backend.databases.pool(pool) as session:
        return len(files.give_up_unfinished(session, before=before, limit=BATCH))


def _forget_deliveries(backend: Backend, *, now: datetime) -> int:
    before = now - timedelta(days=backend.settings.webhook_keep_days)
    total = 0
    while True:  # in batches, so that no lock is held for long
        with backend.databases.central() as session:
            forgotten = deliveries.forget_old(session, before=before, limit=BATCH)
        total += forgotten
        if forgotten < BATCH or is_time_up():
            return total


def _clear_quarantine(backend: Backend, *, before: datetime) -> int:
    """What was sent once more after it was accepted, or left there by a crash."""

    def delete(key: str) -> bool:
        backend.store.delete(key)
        return True

    return each(backend.store.stale("uploads/", before), delete)


def purge_deleted(backend: Backend, pool: str) -> int:
    total = 0
    while True:
        with backend.databases.pool(pool) as session:
            condemned = files.to_purge(session, limit=BATCH)
        done = each(condemned, partial(purge, backend))
        total += done
        if done < BATCH:  # that was all, or the rest can't be deleted now
            return total


def purge(backend: Backend, file: File) -> bool:
    """Delete the object of a file that was marked deleted, then note that it is gone."""
    if file.upload_id is not None:
        backend.store.abort_multipart(file.object_key, file.upload_id)
    backend.store.delete(file.object_key)
    if file.status == FileStatus.PENDING:  # a crash while accepting it may have left a copy
        final_key = object_paths.input_key(file.tenant_id, file.id, file.mime_type)
        backend.store.delete(final_key)
    with backend.databases.tenant(file.tenant_id) as session:
        files.note_purged(session, file.id)
    return True
