"""What a heartbeat writes on PostgreSQL, in few round trips, is what the plain functions write on
SQLite, and it refuses what they refuse."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text, update

from models import hot_heartbeat
from models.base import utcnow
from models.dispatches import Dispatch, Lease
from models.errors import LeaseLost
from models.littered import FORGOTTEN
from models.workers import Identity, Worker
from tasks import catalog, heartbeats, outcomes, reports
from tasks.backend import Backend
from tests.fixtures import Person, make_person
from tests.models.both_ways import Story, assert_both_write_the_same, rows
from tests.tasks import gpu, orders

NOTHING: dict[str, Any] = {"progress": None, "current_node": None}


def beats(backend: Backend, worker: Identity, lease: Lease, *told: dict[str, Any]) -> None:
    for one in told:
        heartbeats.busy(backend, worker, lease, **one)


def at_work(backend: Backend, ada: Person) -> tuple[Identity, Lease]:
    orders.order(backend, ada)
    worker = gpu.join(backend, "w1")
    return worker, gpu.take(backend, worker)


def progress_that_falls_back(backend: Backend, ada: Person) -> None:
    worker, lease = at_work(backend, ada)
    beats(backend, worker, lease, {"progress": 0.4, "current_node": "a"}, {"progress": 0.2})


def a_node_without_progress(backend: Backend, ada: Person) -> None:
    worker, lease = at_work(backend, ada)
    beats(backend, worker, lease, {"progress": 0.4}, {"current_node": "b"}, NOTHING)


def a_heartbeat_before_any_progress(backend: Backend, ada: Person) -> None:
    beats(backend, *at_work(backend, ada), NOTHING)


def addresses_between_heartbeats(backend: Backend, ada: Person) -> None:
    worker, lease = at_work(backend, ada)
    beats(backend, worker, lease, {"progress": 0.4}, {"outputs": [gpu.IMAGE]}, {"progress": 0.5})


def a_lease_that_ran_out_and_lives_on(backend: Backend, ada: Person) -> None:
    worker, lease = at_work(backend, ada)
    with backend.databases.central() as session:
        session.execute(update(Dispatch).values(lease_expires_at=utcnow() - timedelta(hours=1)))
    beats(backend, worker, lease, {"progress": 0.4})
    reports.complete(backend, worker, lease, outputs=[gpu.IMAGE])


def a_heartbeat_after_a_cancel(backend: Backend, ada: Person) -> None:
    job = orders.order(backend, ada)
    worker = gpu.join(backend, "w1")
    lease = gpu.take(backend, worker)
    outcomes.cancel(backend, ada.tenant_id, job.id)
    assert heartbeats.busy(backend, worker, lease, progress=0.4).cancel_requested


def idle_after_work(backend: Backend, ada: Person) -> None:
    worker, lease = at_work(backend, ada)
    beats(backend, worker, lease, {"progress": 0.4})
    reports.complete(backend, worker, lease, outputs=[gpu.IMAGE])
    heartbeats.idle(backend, worker)


@pytest.mark.parametrize(
    "story",
    [
        progress_that_falls_back,
        a_node_without_progress,
        a_heartbeat_before_any_progress,
        addresses_between_heartbeats,
        a_lease_that_ran_out_and_lives_on,
        a_heartbeat_after_a_cancel,
        idle_after_work,
    ],
)
def test_both_ways_write_the_same_rows(postgres: Backend, sqlite: Backend, story: Story) -> None:
    assert_both_write_the_same(postgres, sqlite, story)


@pytest.mark.parametrize(
    "wrong",
    [{"token": uuid4()}, {"dispatch_id": uuid4()}, {"fleet_id": uuid4()}],
    ids=["token", "dispatch", "fleet"],
)
def test_a_lease_of_somebody_else_changes_nothing(postgres: Backend, wrong: dict[str, Any]) -> None:
    catalog.seed_demo(postgres)
    worker, lease = at_work(postgres, make_person(postgres, tokens=100))
    before = rows(postgres)
    with pytest.raises(LeaseLost):
        heartbeats.busy(postgres, worker, replace(lease, **wrong), progress=0.4)
    after = rows(postgres)
    for row in after["ai_job_dispatches"]:  # noted for the sweep of leftovers, and nothing else
        row["last_error"] = None if row["last_error"] == FORGOTTEN else row["last_error"]
    assert after == before


def test_a_lease_that_was_reported_changes_nothing(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    worker, lease = at_work(postgres, make_person(postgres, tokens=100))
    reports.complete(postgres, worker, lease, outputs=[gpu.IMAGE])
    before = rows(postgres)
    with pytest.raises(LeaseLost):
        heartbeats.busy(postgres, worker, lease, progress=0.4)
    assert rows(postgres) == before


def version_of(backend: Backend, worker: Identity) -> Any:
    """Changes whenever its row is written."""
    with backend.databases.central(read_only=True) as session:
        asked = "SELECT xmin::text, last_seen_at FROM comfyui_workers WHERE id = :id"
        return session.execute(text(asked), {"id": worker.id}).one()


def test_a_worker_is_written_only_if_there_is_something_new_to_say(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    worker, lease = at_work(postgres, make_person(postgres, tokens=100))
    heartbeats.idle(postgres, worker)
    before = version_of(postgres, worker)
    heartbeats.idle(postgres, worker)
    assert version_of(postgres, worker) == before
    heartbeats.busy(postgres, worker, lease)
    assert version_of(postgres, worker) != before


@pytest.mark.parametrize("holds_a_lease", [True, False])
def test_a_worker_that_was_not_heard_of_for_long_is_seen(
    postgres: Backend, holds_a_lease: bool
) -> None:
    catalog.seed_demo(postgres)
    worker, lease = at_work(postgres, make_person(postgres, tokens=100))
    long_ago = utcnow() - timedelta(minutes=1)
    with postgres.databases.central() as session:
        session.execute(update(Worker).values(last_seen_at=long_ago))
    if holds_a_lease:
        heartbeats.busy(postgres, worker, lease)
    else:
        heartbeats.idle(postgres, worker)
    assert version_of(postgres, worker).last_seen_at > long_ago


def test_a_worker_is_the_same_by_both_ways(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    token = gpu.register(postgres)
    plain, hot = gpu.identify(postgres, token), hot_heartbeat.identify(postgres.databases, token)
    assert hot is not None
    assert sorted(hot.workflow_ids) == sorted(plain.workflow_ids) != []
    assert replace(hot, workflow_ids=[]) == replace(plain, workflow_ids=[])
    assert hot_heartbeat.identify(postgres.databases, "unknown") is None
