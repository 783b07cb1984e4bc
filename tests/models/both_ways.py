"""The same story told on PostgreSQL, in few round trips, and on SQLite, by the plain functions:
every row that it leaves behind is compared."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select

from models.audit import AuditLog
from models.dispatches import Dispatch
from models.effects import Effect
from models.files import File
from models.jobs import Job, JobOutput
from models.ledger import Transaction, Wallet
from models.videos import Video
from models.webhooks import WebhookDelivery
from models.workers import Worker, WorkerWorkflow
from tasks import catalog
from tasks.backend import Backend
from tests.fixtures import Person, make_person
from tests.tasks import receivers

Story = Callable[[Backend, Person], None]

TENANT = (Job, JobOutput, Transaction, Wallet, File, Video)
CENTRAL = (Dispatch, AuditLog, Effect, Worker, WorkerWorkflow, WebhookDelivery)
#: A sequence goes on counting between tests, and secrets are new every time.
APART = {"seq", "token_hash", "provider_transaction_id", "idempotency_key", "fingerprint"}

AN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|msg_[0-9a-f]{32}")
A_TIME = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")

#: Who listens: two hear of a job that completed, two of any other end.
LISTENING = (["job.completed"], ["job.failed", "job.cancelled"], None)


def rows(backend: Backend) -> dict[str, list[dict[str, Any]]]:
    """Every row of both databases, with ids and times made alike."""
    for later in (backend.later, backend.checks):
        later.close()
    found: dict[str, list[dict[str, Any]]] = {}
    with backend.databases.pool("main") as session:
        for table in TENANT:
            found[table.__tablename__] = [columns(row) for row in session.scalars(select(table))]
    with backend.databases.central(read_only=True) as session:
        for kind in CENTRAL:
            found[kind.__tablename__] = [columns(row) for row in session.scalars(select(kind))]
    return {name: sorted(some, key=repr) for name, some in found.items()}


def columns(row: Any) -> dict[str, Any]:
    names = [column.name for column in row.__table__.columns if column.name not in APART]
    return {name: alike(name, getattr(row, name)) for name in names}


def alike(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: alike(key, member) for key, member in value.items()}
    if value and name in ("traceparent", "trace_id"):
        return "TRACE"
    if isinstance(value, UUID | datetime):
        return type(value).__name__
    if isinstance(value, str):
        return A_TIME.sub("TIME", AN_ID.sub("ID", value))
    if isinstance(value, float) and name.endswith("_seconds"):
        return value >= 0
    return value


def assert_both_write_the_same(
    postgres: Backend, sqlite: Backend, story: Story, *, is_heard: bool = True
) -> None:
    """`is_heard`: somebody listens to what happens."""
    written = []
    for backend in (postgres, sqlite):
        catalog.seed_demo(backend)
        ada = make_person(backend, tokens=100)
        for events in LISTENING if is_heard else ():
            receivers.endpoint(backend, ada, "https://hooks.example.com/", events)
        story(backend, ada)
        written.append(rows(backend))
    hot, plain = written
    assert hot["ai_jobs"]
    ended = [job for job in hot["ai_jobs"] if job["completed_at"]]
    assert len(hot["webhook_deliveries"]) == 2 * len(ended) * is_heard
    for table in hot:
        assert hot[table] == plain[table], table
