"""Fleets over HTTP: their names, what they run, and what becomes of jobs that wait."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask
from redis import Redis
from sqlalchemy import select

from models import workflows
from models.base import utcnow
from models.dispatches import Dispatch
from models.fleets import Fleet, WorkflowFleet
from models.users import Role
from tasks import reconcile, sweepers
from tasks.backend import Backend
from tests.webapp.calls import (
    Caller,
    Json,
    MakeCaller,
    answered,
    completed,
    is_utc,
    new_effect,
    nothing_written,
    order,
    ordered,
    refused,
)
from tests.webapp.gpus import Gpu
from tests.webapp.test_admin_workflows import events

ADDRESS = "/api/admin/fleets"


@pytest.fixture
def admin(caller: MakeCaller) -> Caller:
    return caller(role=Role.ADMIN)


def named() -> str:
    return f"f-{uuid4().hex[:12]}"


def made(admin: Caller, **given: Any) -> Json:
    return answered(admin.post(ADDRESS, json={"slug": named()} | given), 201)


def changed(admin: Caller, fleet: str, **given: Any) -> Any:
    return admin.call("PATCH", f"{ADDRESS}/{fleet}", json=given)


def mapped(admin: Caller, slug: str, *wanted: str, query: str = "") -> Any:
    return admin.call("PUT", f"{ADDRESS}/{slug}/workflows{query}", json={"workflows": list(wanted)})


def tickets(backend: Backend, slug: str) -> int:
    backend.later.close()
    with Redis.from_url(backend.settings.redis_url) as redis:
        return int(redis.llen(slug))


def test_a_fleet_is_made_and_shown(admin: Caller) -> None:
    new = {"slug": named(), "name": "Video", "max_workers": 7, "bundle": "wan"}
    fleet = answered(admin.post(ADDRESS, json=new), 201)
    assert {name: fleet[name] for name in new} == new
    assert (fleet["stage"], fleet["is_active"]) == ("dev", True)
    assert (fleet["workflows"], fleet["workers_present"]) == ([], 0)
    assert is_utc(fleet["created_at"])
    assert fleet in answered(admin.get(f"{ADDRESS}?limit=200"))["items"]
    assert fleet not in answered(admin.get(f"{ADDRESS}?limit=200&stage=staging"))["items"]
    plain = made(admin)
    assert (plain["name"], plain["max_workers"], plain["bundle"]) == (plain["slug"], 50, None)
    (event, told), _ = events(admin)
    assert (event, told["fleet"], told["max_workers"]) == ("fleet.create", new["slug"], 7)


def test_a_slug_is_given_once_in_each_stage(admin: Caller) -> None:
    fleet = made(admin)
    with nothing_written(admin.backend):
        answer = admin.post(ADDRESS, json={"slug": fleet["slug"]})
        refused(answer, 409, "slug_taken", "slug")
    elsewhere = made(admin, slug=fleet["slug"], stage="staging")
    assert elsewhere["id"] != fleet["id"]
    after = answered(
        admin.call("PATCH", f"{ADDRESS}/{fleet['slug']}?stage=staging", json={"name": "There"})
    )
    assert (after["id"], after["name"]) == (elsewhere["id"], "There")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("slug", bad) for bad in ("", "GPU", "a_b", "3d", "a.b", "a*", "x" * 64, None)),
        *(("slug", bad) for bad in ("control", "unacked", "celery", "webhooks")),
        *(("stage", bad) for bad in ("", "Dev", "a/b", "s" * 33)),
        *(("max_workers", bad) for bad in (-1, 10_001, 1.5, "5", None)),
        ("name", ""),
        ("bundle", ""),
        ("workflows", ["image-blur"]),
    ],
)
def test_a_bad_fleet_is_refused_by_its_field(admin: Caller, field: str, value: Any) -> None:
    with nothing_written(admin.backend):
        answer = admin.post(ADDRESS, json={"slug": named()} | {field: value})
        refused(answer, 422, "invalid_input", field)


def test_a_fleet_is_changed_field_by_field(admin: Caller) -> None:
    fleet = made(admin, bundle="wan")
    after = answered(changed(admin, fleet["slug"], max_workers=3, bundle=None))
    assert (after["max_workers"], after["bundle"], after["name"]) == (3, None, fleet["name"])
    told = {"max_workers": [50, 3], "bundle": ["wan", None]}
    assert events(admin)[1] == (
        "fleet.change",
        {"fleet": fleet["slug"], "stage": "dev", "changed": told},
    )
    with nothing_written(admin.backend):
        answered(changed(admin, fleet["slug"], max_workers=3))
        refused(changed(admin, fleet["slug"], max_workers=-3), 422, "invalid_input", "max_workers")
        refused(changed(admin, fleet["slug"], slug="other"), 422, "invalid_input", "slug")
        refused(changed(admin, "nothing", max_workers=3), 404, "not_found")


def test_switched_off_it_takes_no_orders_and_no_workers_but_ends_what_waits(
    app: Flask, admin: Caller, caller: MakeCaller, effect: str
) -> None:
    ada, gpu = caller(tokens=10), Gpu(app, effect).join()
    job = ordered(ada, effect)
    answered(changed(admin, effect, is_active=False))
    refused(order(ada, effect), 422, "effect_unavailable")
    refused(Gpu(app, effect).register(), 404, "not_found")
    leased = gpu.poll()
    assert leased is not None
    assert leased["job_id"] == job["id"]
    answered(changed(admin, effect, is_active=True))
    ordered(ada, effect)


# What a fleet runs


def test_a_fleet_runs_what_it_is_told_and_its_workers_too(app: Flask, admin: Caller) -> None:
    first, second = (new_effect(admin.backend, on_a_fleet=False) for _ in range(2))
    fleet = made(admin)["slug"]
    gpu = Gpu(app, fleet).join()
    after = answered(mapped(admin, fleet, first, second))
    assert (after["workflows"], after["workers_present"]) == (sorted([first, second]), 1)
    assert answered(mapped(admin, fleet, second, second))["workflows"] == [second]
    assert answered(gpu.register(worker_id=f"{gpu.worker_id}-2"), 201)["workflows_assigned"] == [
        second
    ]
    assert answered(mapped(admin, fleet))["workflows"] == []
    with nothing_written(admin.backend):
        answered(mapped(admin, fleet))
    told = [details for event, details in events(admin) if event == "fleet.map"]
    assert [(one["added"], one["removed"]) for one in told] == [
        (sorted([first, second]), []),
        ([], [first]),
        ([], [second]),
    ]


def test_a_new_mapping_counts_for_workers_and_orders_at_once(
    app: Flask, admin: Caller, caller: MakeCaller
) -> None:
    ada, slug = caller(tokens=10), new_effect(admin.backend, on_a_fleet=False)
    fleet = made(admin)["slug"]
    gpu = Gpu(app, fleet).join()
    refused(order(ada, slug), 422, "effect_unavailable")
    answered(mapped(admin, fleet, slug))
    job = ordered(ada, slug)
    leased = gpu.poll()
    assert leased is not None
    assert leased["job_id"] == job["id"]


def test_jobs_that_wait_move_along_and_are_rung_for(
    app: Flask, admin: Caller, caller: MakeCaller, effect: str
) -> None:
    ada = caller(tokens=10)
    jobs = [ordered(ada, effect)["id"] for _ in range(3)]
    target = made(admin)["slug"]
    old, new = Gpu(app, effect).join(), Gpu(app, target).join()
    answered(mapped(admin, target, effect))
    assert tickets(admin.backend, target) == 3
    assert old.poll() is None
    moved = [new.poll() for _ in range(3)]
    assert [lease and lease["job_id"] for lease in moved] == jobs
    [told] = [details for event, details in events(admin) if event == "fleet.map"]
    assert told["jobs_moved"] == 3


def test_a_workflow_with_open_jobs_is_not_taken_from_its_last_fleet(
    app: Flask, admin: Caller, caller: MakeCaller, effect: str
) -> None:
    ada, gpu = caller(tokens=10), Gpu(app, effect).join()
    job = ordered(ada, effect)["id"]
    with nothing_written(admin.backend):
        told = refused(mapped(admin, effect), 409, "not_possible_now")
        assert f"{effect} (1)" in told["detail"]
    assert gpu.poll() is not None  # neither is one that is being worked on
    refused(mapped(admin, effect), 409, "not_possible_now")
    with admin.backend.databases.central() as session:
        row = session.scalars(select(Dispatch).where(Dispatch.worker_id == gpu.worker_id)).one()
        row.lease_expires_at = utcnow()
    completed(ada, job)
    answered(mapped(admin, effect))
    refused(order(ada, effect), 422, "effect_unavailable")


@pytest.mark.parametrize("wanted", [["nothing"], ["image-blur", "Bad"], "image-blur", None])
def test_a_mapping_to_what_does_not_exist_is_refused(admin: Caller, wanted: Any) -> None:
    fleet = made(admin)["slug"]
    with nothing_written(admin.backend):
        answer = admin.call("PUT", f"{ADDRESS}/{fleet}/workflows", json={"workflows": wanted})
        problem = refused(answer, 422, "invalid_input")
        assert all(field.startswith("workflows") for field in problem["errors"])
        refused(mapped(admin, "nothing"), 404, "not_found")
        refused(mapped(admin, fleet, query="?stage=staging"), 404, "not_found")


def test_a_stage_has_mappings_of_its_own(admin: Caller) -> None:
    slug = new_effect(admin.backend)
    made(admin, slug=slug, stage="staging")
    answered(mapped(admin, slug, slug, query="?stage=staging"))
    with admin.backend.databases.central(read_only=True) as session:
        workflow = workflows.get(session, slug)
        homes = session.execute(
            select(Fleet.stage, Fleet.slug)
            .join(WorkflowFleet, WorkflowFleet.fleet_id == Fleet.id)
            .where(WorkflowFleet.workflow_id == workflow.id)
        ).tuples()
        assert sorted(homes) == [("dev", slug), ("staging", slug)]


def test_mappings_at_once_end_as_one_of_them_and_strand_nothing(
    app: Flask, admin: Caller, caller: MakeCaller, effect: str
) -> None:
    ada = caller(tokens=100)
    jobs = [ordered(ada, effect)["id"] for _ in range(5)]
    fleets = [made(admin)["slug"] for _ in range(4)]
    workers = [Gpu(app, fleet).join() for fleet in fleets]
    steps: list[Callable[[], Any]] = [
        *(lambda fleet=fleet: answered(mapped(admin, fleet, effect)) for fleet in fleets),
        *(lambda fleet=fleet: Gpu(app, fleet).join() for fleet in fleets),
        *(lambda gpu=gpu: gpu.call("deregister") for gpu in workers[:2]),
    ]
    with ThreadPoolExecutor(len(steps)) as pool:
        for done in [pool.submit(step) for step in steps]:
            done.result(timeout=60)
    with admin.backend.databases.central(read_only=True) as session:
        workflow = workflows.get(session, effect)
        home = session.scalars(
            select(WorkflowFleet).where(WorkflowFleet.workflow_id == workflow.id)
        ).one()
        waiting = session.scalars(select(Dispatch).where(Dispatch.workflow_id == workflow.id))
        assert {one.fleet_id for one in waiting} == {home.fleet_id}
        winner = session.get_one(Fleet, home.fleet_id).slug
    gpu = Gpu(app, winner).join()
    assert [held and held["job_id"] for held in (gpu.poll() for _ in jobs)] == jobs


def order_five(caller: Caller, effect: str) -> list[str]:
    return [ordered(caller, effect)["id"] for _ in range(5)]


def test_orders_during_changes_of_the_mapping_are_all_found(
    app: Flask, admin: Caller, caller: MakeCaller, effect: str
) -> None:
    """Each ends up where its workflow runs: at once, or by the reconciler."""
    homes, people = [effect, made(admin)["slug"]], [caller(tokens=100) for _ in range(3)]

    def move() -> None:
        for number in range(8):
            answered(mapped(admin, homes[(number + 1) % 2], effect))

    with ThreadPoolExecutor(4) as pool:
        moving = pool.submit(move)
        orders = [
            pool.submit(lambda p=p: [ordered(p, effect)["id"] for _ in range(5)]) for p in people
        ]
        moving.result(timeout=90)
        jobs = {job for one in orders for job in one.result(timeout=90)}
    reconcile.move_stranded(admin.backend)
    gpu = Gpu(app, effect).join()
    assert {lease["job_id"] for lease in iter(gpu.poll, None) if lease} == jobs


def test_a_job_ordered_in_the_moment_of_unmapping_is_refunded(
    admin: Caller, caller: MakeCaller, effect: str
) -> None:
    ada = caller(tokens=10)
    job = ordered(ada, effect)
    with admin.backend.databases.central() as session:  # as if its order had been under way
        session.query(WorkflowFleet).filter(
            WorkflowFleet.workflow_id == workflows.get(session, effect).id
        ).delete()
    backend = admin.backend
    assert sweepers.run_once(backend).unserved_refunded == 0  # it may be mapped again
    later = utcnow() + timedelta(seconds=backend.settings.submitting_timeout_seconds + 1)
    assert sweepers.refund_unserved(backend, now=later) >= 1
    assert sweepers.refund_unserved(backend, now=later) == 0
    after = answered(ada.get(f"/api/ai-jobs/{job['id']}"))
    assert (after["status"], after["error"]["code"]) == ("failed", "submission_timeout")
    assert ada.wallet() == {"balance": 10, "reserved": 0}
