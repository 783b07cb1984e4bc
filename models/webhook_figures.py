"""How the sending of webhooks stands at this moment."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.webhooks import IS_FAILED, IS_PENDING, WebhookDelivery, WebhookEndpoint

MOST = 100_000  # deliveries that are counted in one state


@dataclass(frozen=True, kw_only=True)
class WebhookFigures:
    pending: int  # to be sent, now or later
    oldest_due_seconds: float  # how long the one that is due for longest has been due
    failed: int  # of those that are still kept
    endpoints_failing: int  # in use, and nothing but failures lately


def read(session: Session, *, now: datetime) -> WebhookFigures:
    """Of endpoints that are switched off nothing is due."""
    waiting = (
        select(WebhookDelivery.next_attempt_at)
        .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
        .where(IS_PENDING, WebhookEndpoint.is_active)
        .limit(MOST)
        .subquery()
    )
    pending, due_at = session.execute(
        select(func.count(), func.min(waiting.c.next_attempt_at)).select_from(waiting)
    ).one()
    failed = select(WebhookDelivery.id).where(IS_FAILED).limit(MOST).subquery()
    failing = select(func.count()).where(
        WebhookEndpoint.is_active, WebhookEndpoint.failing_since.is_not(None)
    )
    return WebhookFigures(
        pending=pending,
        oldest_due_seconds=max((now - due_at).total_seconds(), 0.0) if due_at else 0.0,
        failed=session.scalars(select(func.count()).select_from(failed)).one(),
        endpoints_failing=session.scalars(failing).one(),
    )
