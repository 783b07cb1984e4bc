"""How webhooks stand, against rows that were made by hand."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from models import tenants, webhook_figures, webhooks
from models.base import utcnow
from models.webhook_figures import WebhookFigures
from models.webhooks import WebhookDelivery, WebhookEndpoint
from tasks.backend import Backend

NOW = utcnow()


class Endpoint:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        with backend.databases.central() as session:
            tenant = tenants.create(session, name="t", pool="main")
            self.id = webhooks.create(
                session, tenant_id=tenant.id, url="https://a", events=["job.failed"], most=1
            ).id

    def change(self, **given: Any) -> None:
        with self.backend.databases.central() as session:
            row = session.get_one(WebhookEndpoint, self.id)
            for name, value in given.items():
                setattr(row, name, value)

    def add(self, status: str = "pending", *, due_in: float = 0) -> None:
        with self.backend.databases.central() as session:
            session.add(
                WebhookDelivery(
                    endpoint_id=self.id,
                    event="job.failed",
                    event_key=uuid4().hex,
                    message_id="m",
                    payload={},
                    status=status,
                    next_attempt_at=NOW + timedelta(seconds=due_in),
                )
            )


def figures(backend: Backend) -> WebhookFigures:
    with backend.databases.central(read_only=True) as session:
        return webhook_figures.read(session, now=NOW)


@pytest.fixture
def endpoint(backend: Backend) -> Endpoint:
    return Endpoint(backend)


def test_without_webhooks_all_is_zero(backend: Backend) -> None:
    assert figures(backend) == WebhookFigures(
        pending=0, oldest_due_seconds=0, failed=0, endpoints_failing=0
    )


def test_what_waits_what_is_due_and_what_failed(backend: Backend, endpoint: Endpoint) -> None:
    for due_in in (-30, -10, 600):
        endpoint.add(due_in=due_in)
    for status in ("failed", "failed", "delivered"):
        endpoint.add(status, due_in=-1000)
    found = figures(backend)
    assert (found.pending, found.oldest_due_seconds, found.failed) == (3, 30, 2)


def test_what_comes_later_is_not_due(backend: Backend, endpoint: Endpoint) -> None:
    endpoint.add(due_in=600)
    assert (figures(backend).pending, figures(backend).oldest_due_seconds) == (1, 0)


def test_of_an_endpoint_that_is_off_nothing_is_due_and_nothing_fails(
    backend: Backend, endpoint: Endpoint
) -> None:
    endpoint.add(due_in=-30)
    endpoint.change(failing_since=NOW)
    assert figures(backend).endpoints_failing == 1
    endpoint.change(is_active=False)
    assert figures(backend) == WebhookFigures(
        pending=0, oldest_due_seconds=0, failed=0, endpoints_failing=0
    )
