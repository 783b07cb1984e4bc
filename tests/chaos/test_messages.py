"""A webhook that is missing, untrue, badly signed or somebody else's is found."""

import json
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import update
from standardwebhooks.webhooks import Webhook

from models import webhooks
from models.jobs import Job
from models.webhooks import DeliveryStatus, WebhookDelivery
from tasks import outcomes
from tasks.backend import Backend
from tests.chaos import messages
from tests.chaos.user import User
from tests.chaos.verdict import Rows
from tests.fixtures import MakePerson
from tests.tasks import orders

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def ada() -> User:
    user = User("ada", url="", random=Random(0), files={})
    user.webhook_secret = SECRET
    return user


@pytest.fixture
def job(demo: Backend, person: MakePerson, ada: User) -> Job:
    """Cancelled, and an endpoint was told so."""
    somebody = person(tokens=5)
    ada.user_id = str(somebody.user_id)
    with demo.databases.central() as session:
        webhooks.create(
            session,
            tenant_id=somebody.tenant_id,
            url="https://example.com/ada",
            events=["job.cancelled"],
            most=1,
        )
    job = orders.order(demo, somebody)
    return outcomes.cancel(demo, job.tenant_id, job.id)


def message(job: Job, *, told: str = "job.cancelled", **other: str) -> dict[str, Any]:
    """As the receiver keeps it; from an hour ago."""
    data = {"job_id": str(job.id), "user_id": str(job.user_id)} | other
    body = json.dumps({"type": told, "data": data})
    at = datetime(2026, 1, 1, tzinfo=UTC)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": f"v1,older {Webhook(SECRET).sign('msg_1', at, body)}",
    }
    return {"path": "/ada", "headers": headers, "body": body}


def said(backend: Backend, ada: User, *heard: dict[str, Any]) -> list[str]:
    rows = Rows.read(backend)
    return [one.sentence for one in messages.about_what_was_heard(rows, [ada], heard)]


def test_told_once_or_twice_all_is_well(demo: Backend, ada: User, job: Job) -> None:
    assert said(demo, ada, message(job)) == []
    assert said(demo, ada, message(job), message(job)) == []


def test_an_end_that_nobody_was_told_of(demo: Backend, ada: User, job: Job) -> None:
    assert said(demo, ada) == ["Nobody was told of job.cancelled."]


def test_an_end_that_did_not_come(demo: Backend, ada: User, job: Job) -> None:
    heard = message(job), message(job, told="job.completed")
    assert said(demo, ada, *heard) == ["Told as job.completed, and it is cancelled."]


def test_a_signature_that_is_not_right(demo: Backend, ada: User, job: Job) -> None:
    forged = message(job)
    forged["body"] = forged["body"].replace("}", " }")
    assert said(demo, ada, forged) == ["ada heard a message with a wrong signature."]


def test_a_job_of_somebody_else_and_one_that_does_not_exist(
    demo: Backend, ada: User, job: Job
) -> None:
    other = message(job, user_id=str(uuid4()))
    assert said(demo, ada, other) == ["ada heard of somebody else's job."]
    unknown = message(job, job_id=str(uuid4()))
    assert said(demo, ada, message(job), unknown) == ["Its end was told, and it does not exist."]


def test_a_delivery_that_was_never_made(demo: Backend, job: Job) -> None:
    [waiting] = messages.about_deliveries(demo)
    assert "of job.cancelled is pending after 0 tries" in waiting.sentence
    with demo.databases.central() as session:
        session.execute(update(WebhookDelivery).values(status=DeliveryStatus.DELIVERED))
    assert list(messages.about_deliveries(demo)) == []
