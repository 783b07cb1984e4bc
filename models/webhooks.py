"""Where tenants want to be told, and every message that was or will be sent there."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import CentralBase, new_id, one_of, utcnow


class DeliveryStatus(StrEnum):
    PENDING = "pending"  #: due at `next_attempt_at`; the deliverer moves it on
    DELIVERED = "delivered"  #: the receiver answered 2xx
    FAILED = "failed"  #: the schedule is exhausted, or the receiver is gone


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
    disabled_reason: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


class WebhookDelivery(CentralBase):
    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        one_of("status", DeliveryStatus),
        CheckConstraint("attempts >= 0", name="attempts_not_negative"),
        # An event is told to an endpoint once, however often a crash repeats the telling.
        UniqueConstraint("endpoint_id", "event_key"),
        Index("ix_webhook_deliveries_endpoint_id_created_at_id", "endpoint_id", "created_at", "id"),
        Index(
            "ix_webhook_deliveries_due",
            "next_attempt_at",
            postgresql_where=text("status = 'pending'"),
            sqlite_where=text("status = 'pending'"),
        ),
    )

    id: Mapped[UUID] = new_id()
    endpoint_id: Mapped[UUID] = mapped_column(
        ForeignKey("webhook_endpoints.id", ondelete="CASCADE")
    )
    event: Mapped[str]
    event_key: Mapped[str]
    payload: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(default=DeliveryStatus.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[datetime] = mapped_column(default=utcnow)
    response_status: Mapped[int | None]
    last_error: Mapped[str | None]
    log: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    delivered_at: Mapped[datetime | None]
