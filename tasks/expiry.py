"""Media that ran out is marked as such, and its objects are deleted (models/retention.py).

What can't be deleted now, because the storage is away or the process died, is marked all the
same, and the sweep deletes it. Each pool and each item fails alone (steps.py).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from models import retention
from models.base import utcnow
from models.files import File
from models.retention import Due
from tasks import sweepers
from tasks.backend import Backend
from tasks.steps import each, guarded, in_every_pool, in_pool

MOST = 20_000  # of each kind that a run looks at


@dataclass
class Expired:
    videos_expired: int = 0
    results_expired: int = 0
    objects_deleted: int = 0


def run_once(backend: Backend, *, now: datetime | None = None) -> Expired:
    now = now or utcnow()
    expired, condemned = Expired(), list[File]()
    in_every_pool(backend, partial(sweepers.date_videos, backend))
    for pool in backend.databases.pools:
        expired.videos_expired += in_pool(
            backend, pool, partial(_expire_videos, backend, now=now, condemned=condemned)
        )
        expired.results_expired += in_pool(
            backend, pool, partial(_expire_results, backend, now=now, condemned=condemned)
        )
    expired.objects_deleted = guarded(
        "expired objects", lambda: each(condemned, partial(sweepers.purge, backend))
    )
    return expired


def _expire_videos(backend: Backend, pool: str, *, now: datetime, condemned: list[File]) -> int:
    with backend.databases.pool(pool) as session:
        due = retention.videos_due(session, now=now, limit=MOST)

    def expire(video: Due) -> bool:
        with backend.databases.tenant(video.tenant_id) as session:
            marked = retention.expire_video(session, video, backend.settings, now=now)
        condemned.extend(marked or ())
        return marked is not None

    return each(due, expire)


def _expire_results(backend: Backend, pool: str, *, now: datetime, condemned: list[File]) -> int:
    days = backend.settings.result_days
    if not days:
        return 0
    with backend.databases.pool(pool) as session:
        due = retention.results_due(session, before=now - timedelta(days=days), limit=MOST)

    def expire(job: Due) -> bool:
        with backend.databases.tenant(job.tenant_id) as session:
            marked = retention.expire_results(session, job, now=now)
        condemned.extend(marked or ())
        return marked is not None

    return each(due, expire)
