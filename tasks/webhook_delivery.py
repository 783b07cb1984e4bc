"""One delivery: claim it, send it with no transaction open, note what came of it.

A crash in between leaves a claim that runs out; then it is sent again. Its id stays the same, so
the receiver can tell.
"""

import random
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from sqlalchemy.orm import Session

from models import audit, delivery_claims, webhooks
from models.delivery_claims import Claim, Tried
from models.webhooks import WebhookEndpoint
from tasks import webhook_sending
from tasks.backend import Backend
from tasks.webhook_sending import Patience

GONE = 410  # a receiver's word for: never again
MARGIN_SECONDS = 60.0  # of a claim: a name may take long to be resolved


class Outcome(StrEnum):
    NOTHING = "nothing"  #: there was nothing to send, or others have it by now
    DELIVERED = "delivered"
    PUT_OFF = "put off"  #: it failed, and is tried again
    FAILED = "failed"  #: it failed, for good


def deliver_next(backend: Backend, endpoint_id: UUID, *, now: datetime) -> Outcome:
    """The delivery of this endpoint that is due for longest."""
    settings = backend.settings
    total = settings.webhook_connect_seconds + settings.webhook_answer_seconds
    with backend.databases.central() as session:
        claimed = delivery_claims.claim(
            session, endpoint_id, now=now, lease_seconds=total + MARGIN_SECONDS
        )
    if claimed is None:
        return Outcome.NOTHING
    patience = Patience(settings.webhook_connect_seconds, total)
    tried = webhook_sending.send(claimed, backend.webhook_rules, patience)
    with backend.databases.central() as session:
        return _note(backend, session, claimed, tried, now=now)


def _note(
    backend: Backend, session: Session, claimed: Claim, tried: Tried, *, now: datetime
) -> Outcome:
    if tried.error is None:
        is_noted = delivery_claims.note_delivered(session, claimed, tried)
        return Outcome.DELIVERED if is_noted else Outcome.NOTHING
    endpoint = webhooks.locked(session, claimed.endpoint_id)
    if endpoint is None:  # removed meanwhile
        return Outcome.NOTHING
    retry_at = _retry_at(
        backend, claimed, tried, now=now + timedelta(milliseconds=tried.milliseconds)
    )
    if not delivery_claims.note_failed(session, claimed, tried, retry_at=retry_at):
        return Outcome.NOTHING
    endpoint.failing_since = endpoint.failing_since or now
    if endpoint.is_active and (reason := _reason_to_stop(backend, endpoint, tried, now=now)):
        webhooks.disable(endpoint, reason)
        audit.record(
            session,
            "webhook.disable",
            actor="system",
            tenant_id=endpoint.tenant_id,
            endpoint_id=str(endpoint.id),
            reason=reason,
        )
    return Outcome.FAILED if retry_at is None else Outcome.PUT_OFF


def _retry_at(backend: Backend, claimed: Claim, tried: Tried, *, now: datetime) -> datetime | None:
    """When to try again; None: it was tried often enough, or the receiver wants no more.

    Ours is the least pause; a receiver may ask for a longer one, within reason.
    """
    pauses = backend.webhook_rules.pauses
    if tried.status == GONE or claimed.attempts >= len(pauses):
        return None
    pause = pauses[claimed.attempts] * random.uniform(1, 1.1)  # noqa: S311 - not all at once
    asked = min(tried.wait_seconds or 0.0, backend.settings.webhook_max_pause_seconds)
    return now + timedelta(seconds=max(pause, asked))


def _reason_to_stop(
    backend: Backend, endpoint: WebhookEndpoint, tried: Tried, *, now: datetime
) -> str | None:
    if tried.status == GONE:
        return "The receiver answered 410: it wants no more."
    days = backend.settings.webhook_disable_days
    if endpoint.failing_since and now - endpoint.failing_since >= timedelta(days=days):
        return f"Every try failed for {days} days. The last one: {tried.error}"
    return None
