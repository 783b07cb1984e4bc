"""What is written about a message for an endpoint, but for sending it (delivery_claims.py).

A delivery is written in the transaction that it tells of, once for an endpoint and key, so no
crash loses or doubles one.

Locks are taken in one order: endpoint, then delivery.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from models import messages, webhooks
from models.base import changed_rows, row_id, utcnow
from models.errors import NotFound, NotPossibleNow
from models.messages import Message
from models.webhooks import IS_PENDING, DeliveryStatus, WebhookDelivery, WebhookEndpoint


def tell(session: Session, tenant_id: UUID, message: Message) -> int:
    """Write a delivery for each endpoint that listens. Returns how many were not told before."""
    told = 0
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    for endpoint_id in webhooks.listening(session, tenant_id, message.event):
        now = utcnow()
        row = {
            "id": row_id(),
            "endpoint_id": endpoint_id,
            "event": message.event,
            "event_key": message.key,
            "message_id": message.id,
            "payload": message.payload,
            "status": DeliveryStatus.PENDING,
            "attempts": 0,
            "next_attempt_at": now,
            "created_at": now,
        }
        statement = dialect.insert(WebhookDelivery).values(row)
        once = statement.on_conflict_do_nothing(index_elements=["endpoint_id", "event_key"])
        told += changed_rows(session.execute(once))
    return told


def get(session: Session, delivery_id: UUID, *, endpoint_id: UUID) -> WebhookDelivery:
    delivery = session.get(WebhookDelivery, delivery_id)
    if delivery is None or delivery.endpoint_id != endpoint_id:
        raise NotFound("There is no such delivery.")
    return delivery


def replay(
    session: Session, endpoint: WebhookEndpoint, delivery_id: UUID
) -> tuple[WebhookDelivery, bool]:
    """Send a message once more. The caller has locked the endpoint.

    A message that waits already is due now instead, and False comes with it: nobody can pile
    up a heap of one message.
    """
    told = get(session, delivery_id, endpoint_id=endpoint.id)
    again = WebhookDelivery(
        id=row_id(),
        endpoint_id=endpoint.id,
        event=told.event,
        message_id=told.message_id,
        payload=told.payload,
    )
    again.event_key = f"replay:{again.id}"
    return _send_now(session, endpoint, again, WebhookDelivery.message_id == told.message_id)


def test(session: Session, endpoint: WebhookEndpoint) -> tuple[WebhookDelivery, bool]:
    """Have something sent at once, as `replay` does."""
    message = messages.test(endpoint_id=endpoint.id, at=utcnow())
    trial = WebhookDelivery(
        id=row_id(),
        endpoint_id=endpoint.id,
        event=message.event,
        event_key=message.key,
        message_id=message.id,
        payload=message.payload,
    )
    return _send_now(session, endpoint, trial, WebhookDelivery.event == message.event)


def _send_now(
    session: Session,
    endpoint: WebhookEndpoint,
    delivery: WebhookDelivery,
    is_same: ColumnElement[bool],
) -> tuple[WebhookDelivery, bool]:
    if not endpoint.is_active:
        raise NotPossibleNow("The endpoint is switched off. Switch it on first.")
    waiting = session.scalar(
        select(WebhookDelivery)
        .where(WebhookDelivery.endpoint_id == endpoint.id, IS_PENDING, is_same)
        .limit(1)
        .with_for_update()
    )
    if waiting is not None:
        waiting.next_attempt_at = utcnow()
        session.flush()
        return waiting, False
    session.add(delivery)
    session.flush()
    return delivery, True


def forget_old(session: Session, *, before: datetime, limit: int) -> int:
    return _forget(session, WebhookDelivery.created_at < before, limit)


def forget_all_of(session: Session, endpoint_id: UUID, *, limit: int) -> int:
    return _forget(session, WebhookDelivery.endpoint_id == endpoint_id, limit)


def _forget(session: Session, which: ColumnElement[bool], limit: int) -> int:
    some = select(WebhookDelivery.id).where(which).limit(limit).scalar_subquery()
    statement = delete(WebhookDelivery).where(WebhookDelivery.id.in_(some))
    return changed_rows(session.execute(statement.execution_options(synchronize_session=False)))
