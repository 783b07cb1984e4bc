"""Ordering a job: everything that is looked at before its price is taken, in one transaction.

The wallet's lock comes first, so two orders of one user never see the same balance, the same
number of active jobs, or the same unused key. An order that is refused leaves nothing behind.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models import files, ledger, videos
from models.base import row_id, utcnow
from models.errors import IdempotencyKeyReused, InvalidInput, NotPossibleNow, TooManyActiveJobs
from models.files import File
from models.jobs import ACTIVE, Job
from models.videos import VideoStatus


@dataclass(frozen=True, kw_only=True)
class Order:
    """Everything a submit needs to know, already validated and priced."""

    user_id: UUID
    effect_id: UUID
    effect_slug: str
    workflow_id: UUID
    provider: str
    price_tokens: int
    idempotency_key: str
    fingerprint: str
    input_payload: dict[str, Any]
    video_id: UUID | None = None


@dataclass(frozen=True)
class Submitted:
    job: Job
    is_new: bool


def submit(session: Session, order: Order, *, max_active: int | None) -> Submitted:
    """Order a job and take its price, in one step. The same order again is the same job.

    Without `max_active` the user may have any number: somebody else orders for them.
    """
    ledger.lock_wallet(session, user_id=order.user_id)
    if job := replayed(session, order):
        return Submitted(job, is_new=False)
    if max_active is not None and count_active(session, user_id=order.user_id) >= max_active:
        raise too_many_active(max_active)
    _claim_media(session, order)
    job = Job(id=row_id(), **vars(order), created_at=utcnow(), outputs=[])
    session.add(job)
    session.flush()
    ledger.reserve(session, user_id=order.user_id, job_id=job.id, price_tokens=order.price_tokens)
    return Submitted(job, is_new=True)


_A = {"image": "an image", "video": "a video"}


def _claim_media(session: Session, order: Order) -> None:
    """What the order refers to must be the user's own, checked, and of the right kind."""
    payload = order.input_payload
    for name, kind in payload["media"].items():
        if order.video_id is not None and name == payload["primary"]:
            video = videos.get(session, order.video_id, user_id=order.user_id, lock=True)
            if video.status == VideoStatus.EXPIRED:
                raise NotPossibleNow("The files of this video have expired. Upload it again.")
            video.status, video.error, video.expires_at = VideoStatus.PROCESSING, None, None
            field, found = "video_id", video.kind
        else:
            file = files.get(session, UUID(payload["values"][name]), user_id=order.user_id)
            field, found = f"inputs.{name}", file.kind or "a file that was never checked"
        if found != kind:
            raise InvalidInput.field(field, f"Must be {_A[kind]}; this is {_A.get(found, found)}.")


def too_many_active(limit: int) -> TooManyActiveJobs:
    return TooManyActiveJobs(
        f"At most {limit} jobs can be active at once. Wait for one to end.",
        retry_after_seconds=10,
    )


def replayed(session: Session, order: Order) -> Job | None:
    """The job that this order's key already made, if it is the same order."""
    job = find_by_key(session, user_id=order.user_id, idempotency_key=order.idempotency_key)
    if job is not None:
        require_same_order(job, order.fingerprint)
    return job


def require_same_order(job: Job, fingerprint: str) -> None:
    if job.fingerprint != fingerprint:
        raise IdempotencyKeyReused("Use a new key for a new order; this one made another job.")


def find_by_key(session: Session, *, user_id: UUID, idempotency_key: str) -> Job | None:
    return session.scalar(
        select(Job).where(Job.user_id == user_id, Job.idempotency_key == idempotency_key)
    )


def count_active(session: Session, *, user_id: UUID) -> int:
    query = select(func.count()).select_from(Job)
    return session.scalars(query.where(Job.user_id == user_id, Job.status.in_(ACTIVE))).one()


def media_files(session: Session, job: Job) -> dict[str, File]:
    """The file behind each media property of a job."""
    payload = job.input_payload
    found: dict[str, File] = {}
    for name in payload["media"]:
        if job.video_id is not None and name == payload["primary"]:
            video = videos.get(session, job.video_id, user_id=job.user_id)
            found[name] = video.original_file
        else:
            file_id = UUID(payload["values"][name])
            found[name] = files.get(session, file_id, user_id=job.user_id)
    return found
