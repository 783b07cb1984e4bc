"""Remove what nobody will come back for: unfinished uploads, deleted files."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from models import files
from models.base import utcnow
from models.files import File
from tasks.backend import Backend
from tasks.reconcile import each

BATCH = 1000


@dataclass
class Swept:
    uploads_given_up: int = 0
    objects_deleted: int = 0


def run_once(backend: Backend, *, now: datetime | None = None) -> Swept:
    now = now or utcnow()
    before = now - timedelta(seconds=backend.settings.upload_timeout_seconds)
    swept = Swept()
    for pool in backend.databases.pools:
        swept.uploads_given_up += _give_up_uploads(backend, pool, before=before)
        swept.objects_deleted += purge_deleted(backend, pool)
    backend.store.sweep_unfinished(before)
    return swept


def _give_up_uploads(backend: Backend, pool: str, *, before: datetime) -> int:
    with backend.databases.pool(pool) as session:
        unfinished = files.never_finished(session, before=before, limit=BATCH)
        for file in unfinished:
            file.deleted_at = utcnow()
    return len(unfinished)


def purge_deleted(backend: Backend, pool: str) -> int:
    with backend.databases.pool(pool) as session:
        condemned = files.to_purge(session, limit=BATCH)
    return each(condemned, lambda file: purge(backend, file))


def purge(backend: Backend, file: File) -> bool:
    """Delete the object of a file that was marked deleted, then note that it is gone."""
    if file.upload_id is not None:
        backend.store.abort_multipart(file.object_key, file.upload_id)
    backend.store.delete(file.object_key)
    with backend.databases.tenant(file.tenant_id) as session:
        row = session.get(File, file.id)
        if row is not None:
            row.purged_at = utcnow()
    return True
