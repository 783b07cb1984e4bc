"""Workers over HTTP: seen, drained, locked out and let in again, given new tokens."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from redis import Redis
from sqlalchemy import select, update

from models.base import utcnow
from models.dispatches import Dispatch
from models.users import Role
from models.workers import Worker
from tasks import reconcile
from tests.tasks import gpu as workers_known
from tests.webapp.calls import (
    NOBODY,
    Caller,
    Json,
    MakeCaller,
    answered,
    is_utc,
    nothing_written,
    ordered,
    refused,
)
from tests.webapp.conftest import running
from tests.webapp.gpus import Gpu, held, lease_of
from tests.webapp.test_admin_workflows import events

ADDRESS = "/api/admin/workers"
ORDERS = ["approve", "revoke", "drain", "undrain", "rotate-token"]


@pytest.fixture
def admin(caller: MakeCaller) -> Caller:
    return caller(role=Role.ADMIN)


def command(admin: Caller, worker: str, order: str) -> Json:
    return answered(admin.post(f"{ADDRESS}/{worker}/{order}"))


def seen(admin: Caller, gpu: Gpu) -> Json:
    [found] = answered(admin.get(f"{ADDRESS}?fleet={gpu.fleet}"))["items"]
    return found


def tickets(admin: Caller, slug: str) -> int:
    admin.backend.later.close()
    with Redis.from_url(admin.backend.settings.redis_url) as redis:
        return int(redis.llen(slug))


def test_a_worker_is_seen_with_what_it_holds(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    idle = seen(admin, gpu)
    assert (idle["worker_id"], idle["fleet"], idle["stage"]) == (gpu.worker_id, gpu.fleet, "dev")
    assert (idle["status"], idle["is_approved"], idle["is_draining"]) == ("present", True, False)
    assert (idle["providers"], idle["capabilities"]) == (["self_hosted"], {"gpu": "none"})
    assert (idle["holds"], idle["current_load"], idle["max_concurrency"]) == ([], 0, 1)
    assert is_utc(idle["last_seen_at"])
    job = ordered(ada, gpu.fleet)
    lease = lease_of(held(gpu))
    answered(gpu.call("heartbeat", lease | {"progress": 0.25, "current_node": "KSampler"}))
    busy = seen(admin, gpu)
    [one] = busy["holds"]
    assert (one["job_id"], one["dispatch_id"]) == (job["id"], lease["dispatch_id"])
    assert (one["progress"], one["current_node"], one["attempt"]) == (0.25, "KSampler", 1)
    assert busy["current_load"] == 1


def test_workers_are_listed_by_fleet_stage_and_pages(app: Flask, admin: Caller, gpu: Gpu) -> None:
    others = [Gpu(app, gpu.fleet).join() for _ in range(2)]
    names = [one.worker_id for one in [gpu, *others]][::-1]
    address = f"{ADDRESS}?fleet={gpu.fleet}"
    page = answered(admin.get(f"{address}&limit=2"))
    rest = answered(admin.get(f"{address}&cursor={page['next_cursor']}"))
    assert [one["worker_id"] for one in page["items"] + rest["items"]] == names
    assert answered(admin.get(f"{address}&stage=staging"))["items"] == []
    assert gpu.worker_id in str(answered(admin.get(f"{ADDRESS}?limit=200")))
    refused(admin.get(f"{ADDRESS}?cursor={page['next_cursor']}"), 422, "invalid_cursor", "cursor")


def test_one_that_was_not_heard_of_is_gone(admin: Caller, gpu: Gpu) -> None:
    long_ago = utcnow() - timedelta(seconds=admin.backend.settings.worker_gone_seconds + 1)
    with admin.backend.databases.central() as session:
        row = update(Worker).where(Worker.worker_id == gpu.worker_id)
        session.execute(row.values(last_seen_at=long_ago))
    assert seen(admin, gpu)["status"] == "gone"
    answered(gpu.call("heartbeat"))
    assert seen(admin, gpu)["status"] == "present"


def test_drained_it_takes_no_jobs_until_undrained(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    ordered(ada, gpu.fleet)
    assert command(admin, gpu.worker_id, "drain")["is_draining"] is True
    assert gpu.poll() is None
    assert answered(gpu.call("heartbeat"))["draining"] is True
    with nothing_written(admin.backend):
        command(admin, gpu.worker_id, "drain")
    assert command(admin, gpu.worker_id, "undrain")["is_draining"] is False
    assert gpu.poll() is not None
    assert [event for event, _ in events(admin)] == ["worker.drain", "worker.undrain"]


def test_locked_out_its_token_is_refused_and_its_job_is_for_others_at_once(
    app: Flask, admin: Caller, ada: Caller, gpu: Gpu
) -> None:
    job = ordered(ada, gpu.fleet)
    lease = lease_of(held(gpu))
    before = tickets(admin, gpu.fleet)
    after = command(admin, gpu.worker_id, "revoke")
    assert (after["is_approved"], after["status"]) == (False, "present")
    assert tickets(admin, gpu.fleet) == before + 1
    done = lease | {"outputs": []}
    for call, told in (("poll", {}), ("heartbeat", {}), ("heartbeat", lease), ("complete", done)):
        refused(gpu.call(call, told), 403, "forbidden")
    refused(gpu.register(), 403, "forbidden")
    other = Gpu(app, gpu.fleet).join()
    assert held(other)["job_id"] == job["id"]
    [(event, told)] = events(admin)
    assert (event, told) == ("worker.revoke", {"fleet": gpu.fleet, "abandoned": 1})
    with nothing_written(admin.backend):
        command(admin, gpu.worker_id, "revoke")


def test_let_in_again_it_works_with_the_token_it_had(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    command(admin, gpu.worker_id, "revoke")
    assert command(admin, gpu.worker_id, "approve")["is_approved"] is True
    ordered(ada, gpu.fleet)
    held(gpu)
    assert [event for event, _ in events(admin)] == ["worker.revoke", "worker.approve"]


def test_a_new_token_is_shown_once_and_the_old_one_refused(
    admin: Caller, ada: Caller, gpu: Gpu
) -> None:
    ordered(ada, gpu.fleet)
    lease = lease_of(held(gpu))
    told = command(admin, gpu.worker_id, "rotate-token")
    assert len(told["token"]) == 64
    assert "token" not in seen(admin, gpu)
    for call, body in (("poll", {}), ("heartbeat", lease)):
        refused(gpu.call(call, body), 401, "unauthorized")
    refused(gpu.register(), 409, "worker_id_taken")  # its name is not free yet
    gpu.token = told["token"]
    answered(gpu.call("heartbeat", lease))
    [(event, details)] = events(admin)
    assert event == "worker.rotate_token"
    assert told["token"] not in str(details)


@pytest.mark.parametrize("by", ["its name", "its id"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_worker_is_found_by_name_and_by_id(admin: Caller, gpu: Gpu, order: str, by: str) -> None:
    name = gpu.worker_id if by == "its name" else seen(admin, gpu)["id"]
    assert command(admin, name, order)["worker_id"] == gpu.worker_id


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["nobody", NOBODY, "..%2f..", "a%20b", "x" * 300])
def test_who_does_not_exist_is_not_found(admin: Caller, order: str, name: str) -> None:
    with nothing_written(admin.backend):
        refused(admin.post(f"{ADDRESS}/{name}/{order}"), 404, "not_found")


def test_an_id_goes_before_a_name_that_looks_like_it(app: Flask, admin: Caller, gpu: Gpu) -> None:
    """A worker chooses its own name: it must not draw orders to itself that are for another."""
    identity = seen(admin, gpu)["id"]
    Gpu(app, gpu.fleet, worker_id=identity).join()
    assert command(admin, identity, "revoke")["worker_id"] == gpu.worker_id


def test_what_a_process_gives_it_that_remembers_it_for_a_moment_is_taken_from_it(
    app: Flask, admin: Caller, ada: Caller, gpu: Gpu
) -> None:
    remembered = workers_known.identify(admin.backend, gpu.token)
    command(admin, gpu.worker_id, "revoke")
    job = ordered(ada, gpu.fleet)
    leased = workers_known.poll(admin.backend, remembered)
    assert leased is not None
    assert reconcile.run_once(admin.backend).locked_out >= 1
    with admin.backend.databases.central(read_only=True) as session:
        row = session.get_one(Dispatch, leased.dispatch.id)
        assert (row.status, row.worker_id) == ("queued", None)
    assert held(Gpu(app, gpu.fleet).join())["job_id"] == job["id"]


def test_this_process_forgets_a_worker_at_once(admin: Caller, gpu: Gpu) -> None:
    with running(replace(admin.backend.settings, catalog_seconds=3600)) as remembering:
        here = Caller(remembering, admin.person)
        gpu.app = remembering
        assert gpu.poll() is None
        command(here, gpu.worker_id, "revoke")
        refused(gpu.call("poll"), 403, "forbidden")


def test_an_order_and_a_registration_at_once_lose_neither(
    app: Flask, admin: Caller, gpu: Gpu
) -> None:
    """Whoever comes first: a worker that was locked out is not let in by starting anew."""
    for _ in range(10):
        with ThreadPoolExecutor(2) as pool:
            anew = pool.submit(gpu.register)
            revoked = pool.submit(command, admin, gpu.worker_id, "revoke")
            revoked.result(timeout=30)
            if anew.result(timeout=30).status_code == 201:
                gpu.token = anew.result().get_json()["token"]
        with admin.backend.databases.central(read_only=True) as session:
            mine = select(Worker).where(Worker.worker_id == gpu.worker_id)
            assert session.scalars(mine).one().is_approved is False
        command(admin, gpu.worker_id, "approve")


def test_a_user_orders_no_worker_about(ada: Caller, gpu: Gpu) -> None:
    with nothing_written(ada.backend):
        refused(ada.get(ADDRESS), 403, "forbidden")
        for order in ORDERS:
            refused(ada.post(f"{ADDRESS}/{gpu.worker_id}/{order}"), 403, "forbidden")


def test_nor_does_a_worker(gpu: Gpu) -> None:
    client: Any = gpu.app.test_client()
    headers = {"Authorization": f"Bearer {gpu.token}"}
    answer = client.post(f"{ADDRESS}/{gpu.worker_id}/approve", headers=headers)
    refused(answer, 401, "unauthorized")
