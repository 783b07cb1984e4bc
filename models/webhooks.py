"""Where tenants want to be told, and every message that was or will be sent there.

An endpoint belongs to its tenant. One secret of it signs, and after a change for a while two, so
that a receiver has time to change over. What happens to deliveries is told in deliveries.py.
"""

import base64
import secrets
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    String,
    UniqueConstraint,
    cast,
    delete,
    func,
    select,
    text,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import CentralBase, new_id, one_of, utcnow
from models.errors import NotFound, NotPossibleNow
from models.messages import Event
from models.tenants import Tenant


class DeliveryStatus(StrEnum):
    PENDING = "pending"  #: due at `next_attempt_at`; a courier moves it on
    DELIVERED = "delivered"  #: the receiver answered 2xx
    FAILED = "failed"  #: the schedule is exhausted, or the receiver is gone


IS_PENDING = text("status = 'pending'")
IS_FAILED = text("status = 'failed'")
_WAS_DELIVERED = text("delivered_at IS NOT NULL")


class WebhookEndpoint(CentralBase):
    __tablename__ = "webhook_endpoints"
    __table_args__ = (Index("ix_webhook_endpoints_tenant_id", "tenant_id"),)

    id: Mapped[UUID] = new_id()
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    url: Mapped[str]
    secret: Mapped[str]
    previous_secret: Mapped[str | None]  # both sign while a receiver changes over
    previous_secret_until: Mapped[datetime | None]
    events: Mapped[list[Any]]
    is_active: Mapped[bool] = mapped_column(default=True)
    disabled_reason: Mapped[str | None]  # if nobody switched it off, but we did
    failing_since: Mapped[datetime | None]  # nothing but failed tries since then
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


class WebhookDelivery(CentralBase):
    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        one_of("status", DeliveryStatus),
        CheckConstraint("attempts >= 0", name="attempts_not_negative"),
        # An event is told to an endpoint once, however often a crash repeats the telling.
        UniqueConstraint("endpoint_id", "event_key"),
        Index("ix_webhook_deliveries_endpoint_id_created_at_id", "endpoint_id", "created_at", "id"),
        Index("ix_webhook_deliveries_created_at", "created_at"),
        Index(
            "ix_webhook_deliveries_failed",
            "created_at",
            postgresql_where=IS_FAILED,
            sqlite_where=IS_FAILED,
        ),
        Index(
            "ix_webhook_deliveries_delivered_at",
            "delivered_at",
            postgresql_where=_WAS_DELIVERED,
            sqlite_where=_WAS_DELIVERED,
        ),
        # By endpoint first: the thousand that wait for a dead receiver are in nobody's way.
        Index(
            "ix_webhook_deliveries_pending",
            "endpoint_id",
            "next_attempt_at",
            postgresql_where=IS_PENDING,
            sqlite_where=IS_PENDING,
        ),
    )

    id: Mapped[UUID] = new_id()
    endpoint_id: Mapped[UUID] = mapped_column(
        ForeignKey("webhook_endpoints.id", ondelete="CASCADE")
    )
    event: Mapped[str]
    event_key: Mapped[str]
    # A replay has a key of its own, and the message of the first.
    message_id: Mapped[str] = mapped_column(server_default="")
    payload: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(default=DeliveryStatus.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[datetime] = mapped_column(default=utcnow)
    response_status: Mapped[int | None]
    last_error: Mapped[str | None]
    log: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    delivered_at: Mapped[datetime | None]

    @property
    def due_at(self) -> datetime | None:
        """While it is being sent: when somebody else may."""
        return self.next_attempt_at if self.status == DeliveryStatus.PENDING else None


def create(
    session: Session, *, tenant_id: UUID, url: str, events: list[str], most: int
) -> WebhookEndpoint:
    """A new endpoint with a secret of its own, if its tenant has fewer than it may have."""
    tenant = select(Tenant.id).where(Tenant.id == tenant_id)
    session.scalar(tenant.with_for_update(key_share=True))  # no two at once are the last one
    of_tenant = select(func.count()).where(WebhookEndpoint.tenant_id == tenant_id)
    if session.scalars(of_tenant).one() >= most:
        raise NotPossibleNow(f"There can be {most} endpoints. Remove one first.")
    endpoint = WebhookEndpoint(
        tenant_id=tenant_id, url=url, events=_in_order(events), secret=_new_secret()
    )
    session.add(endpoint)
    session.flush()
    return endpoint


def _new_secret() -> str:
    """As Standard Webhooks writes them."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"


def _in_order(events: list[str]) -> list[str]:
    return [str(event) for event in Event if event in events]


def get(
    session: Session, endpoint_id: UUID, *, tenant_id: UUID, lock: bool = False
) -> WebhookEndpoint:
    """`lock`: nobody else changes it. Being told goes on meanwhile."""
    query = select(WebhookEndpoint).where(
        WebhookEndpoint.id == endpoint_id, WebhookEndpoint.tenant_id == tenant_id
    )
    endpoint = session.scalar(query.with_for_update(key_share=True) if lock else query)
    if endpoint is None:
        raise NotFound("There is no such endpoint.")
    return endpoint


def change(
    endpoint: WebhookEndpoint,
    *,
    url: str | None = None,
    events: list[str] | None = None,
    is_active: bool | None = None,
) -> None:
    """Whoever switches it on wants it tried anew: what went wrong before is forgotten."""
    if url is not None:
        endpoint.url = url
    if events is not None:
        endpoint.events = _in_order(events)
    if is_active is not None:
        endpoint.is_active = is_active
        endpoint.disabled_reason = endpoint.failing_since = None


def rotate(endpoint: WebhookEndpoint, *, overlap_seconds: int, now: datetime | None = None) -> None:
    """A new secret. The one before it signs too for a while, any earlier one no longer."""
    endpoint.previous_secret = endpoint.secret
    endpoint.previous_secret_until = (now or utcnow()) + timedelta(seconds=overlap_seconds)
    endpoint.secret = _new_secret()


def signing_secrets(endpoint: WebhookEndpoint, *, now: datetime) -> list[str]:
    """The newest first."""
    until = endpoint.previous_secret_until
    if endpoint.previous_secret is not None and until is not None and now < until:
        return [endpoint.secret, endpoint.previous_secret]
    return [endpoint.secret]


def listening(session: Session, tenant_id: UUID, event: str) -> list[UUID]:
    """Who is to be told. None of them can be removed before this transaction ends."""
    query = select(WebhookEndpoint.id, WebhookEndpoint.events).where(
        WebhookEndpoint.tenant_id == tenant_id, WebhookEndpoint.is_active
    )
    rows = session.execute(query.with_for_update(read=True, key_share=True))
    return [endpoint_id for endpoint_id, events in rows if event in events]


def tenants_listening(session: Session, event: Event) -> dict[str, list[UUID]]:
    """Tenants with an endpoint for this event, by their pools."""
    found: dict[str, list[UUID]] = {}
    rows = session.execute(
        select(Tenant.pool, Tenant.id)
        .join(WebhookEndpoint, WebhookEndpoint.tenant_id == Tenant.id)
        .where(
            WebhookEndpoint.is_active, cast(WebhookEndpoint.events, String).contains(f'"{event}"')
        )
        .distinct()
    )
    for pool, tenant_id in rows:
        found.setdefault(pool, []).append(tenant_id)
    return found


def locked(session: Session, endpoint_id: UUID) -> WebhookEndpoint | None:
    return session.scalar(
        select(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint_id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )


def note_success(session: Session, endpoint_id: UUID) -> None:
    """Touches the row only where that changes something."""
    session.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.failing_since.is_not(None))
        .values(failing_since=None)
    )


def disable(endpoint: WebhookEndpoint, reason: str) -> None:
    """Going on is of no use. Its owner may switch it on again."""
    endpoint.is_active, endpoint.disabled_reason = False, reason


def remove(session: Session, endpoint_id: UUID) -> None:
    session.execute(delete(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id))
