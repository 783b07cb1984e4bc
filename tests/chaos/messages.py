"""Webhooks: the end of every job was told at least once, to whom it concerns, and truly."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select
from standardwebhooks.webhooks import Webhook

from models.webhooks import DeliveryStatus, WebhookDelivery
from tasks.backend import Backend
from tests.chaos.user import User
from tests.chaos.verdict import Finding, Rows

Json = dict[str, Any]


def about_what_was_heard(
    rows: Rows, users: Sequence[User], heard: Sequence[Json]
) -> Iterator[Finding]:
    by_path = {f"/{user.name}": user for user in users}
    ends: dict[UUID, set[str]] = defaultdict(set)  # as they were told
    for message in heard:
        user, body = by_path[message["path"]], json.loads(message["body"])
        job_id = UUID(body["data"]["job_id"])
        ends[job_id].add(body["type"])
        if not _is_signed(message, user):
            yield Finding(f"{user.name} heard a message with a wrong signature.", job_id)
        if body["data"]["user_id"] != user.user_id:
            yield Finding(f"{user.name} heard of somebody else's job.", job_id)
    listeners = {user.user_id for user in users}
    for job in rows.jobs.values():
        told, true = ends.pop(job.id, set()), f"job.{job.status}"
        if str(job.user_id) in listeners and true not in told:
            yield Finding(f"Nobody was told of {true}.", job.id)
        for wrong in sorted(told - {true}):
            yield Finding(f"Told as {wrong}, and it is {job.status}.", job.id)
    for job_id in sorted(ends):
        yield Finding("Its end was told, and it does not exist.", job_id)


def _is_signed(message: Json, user: User) -> bool:
    """By the reference library, which would refuse what is older than some minutes."""
    headers = message["headers"]
    sent_at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
    signed = Webhook(user.webhook_secret).sign(headers["webhook-id"], sent_at, message["body"])
    return signed in headers["webhook-signature"].split()


def about_deliveries(backend: Backend) -> Iterator[Finding]:
    """What was heard is known to have been heard."""
    with backend.databases.central(read_only=True) as session:
        for one in session.scalars(select(WebhookDelivery)):
            if one.status != DeliveryStatus.DELIVERED:
                yield Finding(
                    f"The delivery {one.id} of {one.event} is {one.status} after {one.attempts} "
                    f"tries: {one.last_error}."
                )
