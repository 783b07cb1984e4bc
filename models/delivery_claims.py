"""Which delivery is sent next, by whom, and what came of it.

    pending ──▶ delivered   the receiver took it
       │
       └──────▶ failed      it was tried as often as the schedule says, or the receiver is gone

Whoever sends one claims it first, by moving the time at which it is due ahead. That very time is
the claim: who comes back with another one was too slow, and only the news that the receiver
took it still counts. If the sender dies the time comes, and somebody else tries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import Select, bindparam, select, update
from sqlalchemy.orm import Session

from models import webhooks
from models.base import UtcDateTime
from models.webhooks import IS_PENDING, DeliveryStatus, WebhookDelivery, WebhookEndpoint

MOST_LOGGED = 20  # tries that a delivery remembers, the newest


@dataclass(frozen=True)
class Claim:
    """A message that its holder is to send before `until`."""

    delivery_id: UUID
    endpoint_id: UUID
    message_id: str
    payload: dict[str, Any]
    attempts: int
    until: datetime
    url: str
    secrets: Sequence[str]


@dataclass(frozen=True)
class Tried:
    """What came of one try. `error` is fit for the owner's eyes; None: the receiver took it."""

    at: datetime
    milliseconds: int
    status: int | None = None
    error: str | None = None
    wait_seconds: float | None = None  # what the receiver asked for


def endpoints_due(session: Session, *, now: datetime) -> dict[UUID, bool]:
    """Endpoints for which something is due; True for those where tries fail."""
    rows = session.execute(_due(), {"now": now})
    return {endpoint_id: failing_since is not None for endpoint_id, failing_since in rows}


@cache
def _due() -> Select[Any]:
    """Steps along the index from endpoint to endpoint: how many wait for one does not matter."""
    endpoint_id = WebhookDelivery.endpoint_id
    first = select(endpoint_id).where(IS_PENDING).order_by(endpoint_id).limit(1)
    walk = select(first.scalar_subquery().label("endpoint_id")).cte("walk", recursive=True)
    step = first.where(endpoint_id > walk.c.endpoint_id).correlate(walk).scalar_subquery()
    walk = walk.union_all(select(step).where(walk.c.endpoint_id.is_not(None)))
    is_due = (
        select(WebhookDelivery.id)
        .where(IS_PENDING, endpoint_id == WebhookEndpoint.id)
        .where(WebhookDelivery.next_attempt_at <= bindparam("now", type_=UtcDateTime()))
        .exists()
    )
    return (
        select(WebhookEndpoint.id, WebhookEndpoint.failing_since)
        .join(walk, walk.c.endpoint_id == WebhookEndpoint.id)
        .where(WebhookEndpoint.is_active, is_due)
    )


def claim(
    session: Session, endpoint_id: UUID, *, now: datetime, lease_seconds: float
) -> Claim | None:
    """The delivery that is due for longest; None if there is none, or others have them all."""
    endpoint = session.get(WebhookEndpoint, endpoint_id)
    if endpoint is None or not endpoint.is_active:
        return None
    due = (
        select(WebhookDelivery.id)
        .where(WebhookDelivery.endpoint_id == endpoint_id, IS_PENDING)
        .where(WebhookDelivery.next_attempt_at <= now)
        .order_by(WebhookDelivery.next_attempt_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    until = now + timedelta(seconds=lease_seconds)
    taken = session.scalar(
        update(WebhookDelivery)
        .where(WebhookDelivery.id == due.scalar_subquery())
        .values(next_attempt_at=until)
        .returning(WebhookDelivery)
        .execution_options(synchronize_session=False)
    )
    if taken is None:
        return None
    return Claim(
        delivery_id=taken.id,
        endpoint_id=endpoint_id,
        message_id=taken.message_id,
        payload=taken.payload,
        attempts=taken.attempts,
        until=until,
        url=endpoint.url,
        secrets=webhooks.signing_secrets(endpoint, now=now),
    )


def note_delivered(session: Session, claimed: Claim, tried: Tried) -> bool:
    """The receiver took it: that is so, whoever else may hold it by now."""
    webhooks.note_success(session, claimed.endpoint_id)
    delivery = _pending(session, claimed)
    if delivery is None:
        return False
    _log(delivery, tried)
    delivery.status, delivery.delivered_at = DeliveryStatus.DELIVERED, tried.at
    return True


def note_failed(
    session: Session, claimed: Claim, tried: Tried, *, retry_at: datetime | None
) -> bool:
    """Try again then, or never. The caller has locked the endpoint. False: the claim was lost."""
    delivery = _pending(session, claimed)
    if delivery is None or delivery.next_attempt_at != claimed.until:
        return False
    _log(delivery, tried)
    if retry_at is None:
        delivery.status = DeliveryStatus.FAILED
    else:
        delivery.next_attempt_at = retry_at
    return True


def _pending(session: Session, claimed: Claim) -> WebhookDelivery | None:
    return session.scalar(
        select(WebhookDelivery)
        .where(WebhookDelivery.id == claimed.delivery_id, IS_PENDING)
        .with_for_update()
        .execution_options(populate_existing=True)
    )


def _log(delivery: WebhookDelivery, tried: Tried) -> None:
    at = tried.at.isoformat().replace("+00:00", "Z")
    entry = {
        "at": at,
        "status": tried.status,
        "milliseconds": tried.milliseconds,
        "error": tried.error,
    }
    delivery.attempts += 1
    delivery.response_status, delivery.last_error = tried.status, tried.error
    delivery.log = [*delivery.log, entry][-MOST_LOGGED:]
