"""How long media is kept. What runs out is marked first; then its objects are deleted.

A video with its upload and all its results is one thing: it expires `upload_days` after it was
made or last tried in vain, and once it has a result, `result_days` after its last job ended. It
is given its date when it comes to rest, and looked at again when that has come: longer times, or
none at all, count for everything, shorter ones for what comes to rest later. The results of a
job without a video expire `result_days` after it.

Nothing that a waiting or running job takes as an input goes: the wallet's lock comes first, as
with an order, so one of the two sees the other.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import exists, func, or_, select, update
from sqlalchemy.orm import Session

from models import files, jobs, ledger
from models.base import changed_rows
from models.files import File
from models.jobs import HAS_OWN_RESULTS, Job, JobStatus
from models.settings import Settings
from models.videos import RUNS_OUT, UNDATED, Video, VideoStatus


@dataclass(frozen=True)
class Due:
    """A video, or a job without one, whose time has come."""

    id: UUID
    tenant_id: UUID
    user_id: UUID


def date(session: Session, settings: Settings, *, limit: int) -> int:
    """Give videos that came to rest the date at which they expire. How many have one now."""
    limited = {_HAS_RESULT: settings.result_days, ~_HAS_RESULT: settings.upload_days}
    kinds = [kind for kind, days in limited.items() if days]
    if not kinds:
        return 0
    query = select(Video.id, *_RESTING).where(UNDATED, or_(*kinds)).order_by(Video.created_at)
    undated = session.execute(query.limit(limit)).all()
    return sum(
        _give_date(session, video_id, _runs_out(settings, *resting))
        for video_id, *resting in undated
    )


_OF_IT = Job.video_id == Video.id
_HAS_RESULT = exists().where(_OF_IT, Job.status == JobStatus.COMPLETED)
_RESTS_SINCE = func.coalesce(
    select(func.max(Job.completed_at)).where(_OF_IT).scalar_subquery(), Video.created_at
)
_RESTING = (_RESTS_SINCE, _HAS_RESULT)


def _runs_out(settings: Settings, rests_since: datetime, has_result: bool) -> datetime | None:
    days = settings.result_days if has_result else settings.upload_days
    return rests_since + timedelta(days=days) if days else None


def _give_date(session: Session, video_id: UUID, expires_at: datetime | None) -> int:
    """Unless it was dated, or ordered for, meanwhile."""
    statement = update(Video).where(Video.id == video_id, UNDATED).values(expires_at=expires_at)
    return changed_rows(session.execute(statement))


def videos_due(session: Session, *, now: datetime, limit: int) -> list[Due]:
    query = (
        select(Video.id, Video.tenant_id, Video.user_id)
        .where(RUNS_OUT, Video.expires_at <= now)
        .order_by(Video.expires_at)
        .limit(limit)
    )
    return [Due(*row) for row in session.execute(query)]


def expire_video(
    session: Session, due: Due, settings: Settings, *, now: datetime
) -> list[File] | None:
    """Its files, marked; None if it stays: somebody needs one of them, or its time has changed."""
    ledger.lock_wallet(session, user_id=due.user_id)
    row = select(Video).where(Video.id == due.id, Video.expires_at <= now)
    row = row.where(Video.deleted_at.is_(None), Video.status != VideoStatus.EXPIRED)
    video = session.scalar(row.with_for_update(of=Video))
    if video is None or not _has_run_out(session, video, settings, now):
        return None
    condemned = jobs.files_around(session, video)
    if jobs.in_use(session, due.user_id, video.id, *(file.id for file in condemned)):
        return None
    video.status = VideoStatus.EXPIRED
    files.mark(session, condemned)
    return condemned


def _has_run_out(session: Session, video: Video, settings: Settings, now: datetime) -> bool:
    resting = session.execute(select(*_RESTING).where(Video.id == video.id)).one()
    video.expires_at = _runs_out(settings, *resting)
    return video.expires_at is not None and video.expires_at <= now


def results_due(session: Session, *, before: datetime, limit: int) -> list[Due]:
    """Jobs without a video that completed before this time."""
    query = (
        select(Job.id, Job.tenant_id, Job.user_id)
        .where(HAS_OWN_RESULTS, Job.completed_at <= before)
        .order_by(Job.completed_at)
        .limit(limit)
    )
    return [Due(*row) for row in session.execute(query)]


def expire_results(session: Session, due: Due, *, now: datetime) -> list[File] | None:
    """Its files, marked; None if somebody needs one of them, or was quicker."""
    ledger.lock_wallet(session, user_id=due.user_id)
    job = session.scalar(select(Job).where(Job.id == due.id, Job.results_expired_at.is_(None)))
    if job is None:
        return None
    condemned = [output.file for output in job.outputs]
    if jobs.in_use(session, due.user_id, *(file.id for file in condemned)):
        return None
    job.results_expired_at = now
    files.mark(session, condemned)
    return condemned
