"""What a tenant does with its endpoints: the change and its audit row in one transaction."""

from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from models import audit, deliveries, webhooks
from models.users import Principal
from models.webhooks import WebhookDelivery, WebhookEndpoint
from tasks.backend import Backend

BATCH = 1000


def create(backend: Backend, who: Principal, *, url: str, events: list[str]) -> WebhookEndpoint:
    backend.webhook_rules.target(url)
    with backend.databases.central() as session:
        endpoint = webhooks.create(
            session,
            tenant_id=who.tenant_id,
            url=url,
            events=events,
            most=backend.settings.webhook_max_endpoints,
        )
        _note(session, "webhook.create", endpoint, who, url=url, events=endpoint.events)
    return endpoint


def change(backend: Backend, who: Principal, endpoint_id: UUID, **changed: Any) -> WebhookEndpoint:
    """`changed`: any of url, events and is_active."""
    if url := changed.get("url"):
        backend.webhook_rules.target(url)
    with backend.databases.central() as session:
        endpoint = webhooks.get(session, endpoint_id, tenant_id=who.tenant_id, lock=True)
        webhooks.change(endpoint, **changed)
        _note(session, "webhook.change", endpoint, who, **changed)
    if endpoint.is_active:
        backend.bell.call_courier()  # what waited while it was off
    return endpoint


def rotate_secret(backend: Backend, who: Principal, endpoint_id: UUID) -> WebhookEndpoint:
    overlap = backend.settings.webhook_overlap_seconds
    with backend.databases.central() as session:
        endpoint = webhooks.get(session, endpoint_id, tenant_id=who.tenant_id, lock=True)
        webhooks.rotate(endpoint, overlap_seconds=overlap)
        _note(session, "webhook.rotate", endpoint, who)
    return endpoint


def remove(backend: Backend, who: Principal, endpoint_id: UUID) -> None:
    """With all its deliveries, some at a time: no lock is held for long, jobs go on ending."""
    with backend.databases.central() as session:
        endpoint = webhooks.get(session, endpoint_id, tenant_id=who.tenant_id, lock=True)
        endpoint.is_active = False
        _note(session, "webhook.remove", endpoint, who, url=endpoint.url)
    while True:
        with backend.databases.central() as session:
            if deliveries.forget_all_of(session, endpoint_id, limit=BATCH) < BATCH:
                break
    with backend.databases.central() as session:
        webhooks.remove(session, endpoint_id)


def replay(
    backend: Backend, who: Principal, endpoint_id: UUID, delivery_id: UUID
) -> tuple[WebhookDelivery, bool]:
    """False: the message waited already, and is due now."""
    with backend.databases.central() as session:
        endpoint = webhooks.get(session, endpoint_id, tenant_id=who.tenant_id, lock=True)
        sent = deliveries.replay(session, endpoint, delivery_id)
    backend.bell.call_courier()
    return sent


def test(backend: Backend, who: Principal, endpoint_id: UUID) -> tuple[WebhookDelivery, bool]:
    with backend.databases.central() as session:
        endpoint = webhooks.get(session, endpoint_id, tenant_id=who.tenant_id, lock=True)
        sent = deliveries.test(session, endpoint)
    backend.bell.call_courier()
    return sent


def _note(
    session: Session, event: str, endpoint: WebhookEndpoint, who: Principal, **details: Any
) -> None:
    audit.record(
        session,
        event,
        actor=f"user:{who.user_id}",
        tenant_id=endpoint.tenant_id,
        endpoint_id=str(endpoint.id),
        **details,
    )
