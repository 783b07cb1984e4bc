"""Workers that are confused, greedy or not what they say, over the real application."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from flask import Flask
from sqlalchemy import select, update

from models.base import utcnow
from models.dispatches import MOST_UPLOADS, Dispatch
from models.workers import Worker
from tasks.backend import Backend
from tests.webapp.calls import Caller, Json, answered, nothing_written, ordered, refused
from tests.webapp.gpus import Gpu, events, held, job_of, lease_of, output, send


def row(backend: Backend, leased: Json) -> Dispatch:
    with backend.databases.central(read_only=True) as session:
        return session.get_one(Dispatch, UUID(leased["dispatch_id"]))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("depth", [200, 700, 900, 950, 980, 1000, 100_000])
def test_capabilities_of_any_depth_break_nothing(app: Flask, effect: str, depth: int) -> None:
    text = '{"a":' * depth + "1" + "}" * depth
    body = f'{{"worker_id": "w", "fleet_slug": "{effect}", "stage": "dev", "capabilities": {text}}}'
    answer = app.test_client().post(
        "/api/worker/register", data=body, content_type="application/json"
    )
    assert answer.status_code in (400, 422)


def test_a_few_levels_of_capabilities_are_welcome(app: Flask, effect: str) -> None:
    answered(Gpu(app, effect).register(capabilities=nested(8)), 201)
    refused(Gpu(app, effect).register(capabilities=nested(9)), 422, "invalid_input")


@pytest.mark.parametrize("missing", ["dispatch_id", "lease_token"])
def test_half_a_lease_is_no_idle_heartbeat(gpu: Gpu, ada: Caller, missing: str) -> None:
    ordered(ada, gpu.fleet)
    half = lease_of(held(gpu))
    del half[missing]
    refused(gpu.call("heartbeat", half), 422, "invalid_input", missing)


@pytest.mark.parametrize(
    "wrong",
    [
        [output(), output(name="never-asked.png")],
        [output(), output()],
        [output(mime_type="image/jpeg")],
        [output() | {"size_bytes": 2**50}],
    ],
    ids=["not asked for", "one name twice", "another type", "too large"],
)
def test_after_wrong_outputs_the_job_can_still_be_completed(
    app: Flask, gpu: Gpu, ada: Caller, backend: Backend, wrong: list[Json]
) -> None:
    job = ordered(ada, gpu.fleet)
    leased = held(gpu)
    with nothing_written(backend):
        refused(gpu.call("complete", lease_of(leased) | {"outputs": wrong}), 422, "invalid_input")
    assert send(app, leased["output_url"], leased["output_headers"]).status_code == 200
    answered(gpu.call("complete", lease_of(leased) | {"outputs": [output()]}))
    assert job_of(ada, job)["status"] == "completed"


@pytest.mark.parametrize(
    "wrong", [[output() | {"size_bytes": 2**50}], [output(), output()]], ids=["too large", "twice"]
)
def test_an_address_that_is_refused_is_not_remembered(
    gpu: Gpu, ada: Caller, backend: Backend, wrong: list[Json]
) -> None:
    ordered(ada, gpu.fleet)
    leased = held(gpu)
    refused(gpu.call("heartbeat", lease_of(leased) | {"outputs": wrong}), 422, "invalid_input")
    assert row(backend, leased).upload_names is None


def test_addresses_are_bounded(gpu: Gpu, ada: Caller, backend: Backend) -> None:
    ordered(ada, gpu.fleet)
    leased = held(gpu)

    def ask(first: int, last: int) -> Any:
        asked = [output(name=f"{number}.png") for number in range(first, last)]
        return gpu.call("heartbeat", lease_of(leased) | {"outputs": asked})

    for first in range(0, MOST_UPLOADS, 100):
        assert len(answered(ask(first, first + 100))["uploads"]) == 100
    refused(ask(MOST_UPLOADS, MOST_UPLOADS + 1), 422, "invalid_input")
    answered(ask(0, 3))  # those it knows are given again
    assert len(row(backend, leased).upload_names or ()) == MOST_UPLOADS


def test_whoever_reports_first_is_right(gpu: Gpu, ada: Caller, backend: Backend) -> None:
    ordered(ada, gpu.fleet)
    leased = held(gpu)
    done = lease_of(leased) | {"outputs": [output()]}
    assert answered(gpu.call("complete", done))["status"] == "completed"
    failing = lease_of(leased) | {"error": "x"}
    assert answered(gpu.call("fail", failing))["status"] == "completed"
    assert answered(gpu.call("fail", failing | {"retryable": True}))["status"] == "completed"
    back = lease_of(leased) | {"reason": "spot"}
    assert answered(gpu.call("requeue", back))["status"] == "completed"
    refused(gpu.call("heartbeat", lease_of(leased)), 409, "lease_lost")
    backend.checks.close()
    assert events(backend, leased["dispatch_id"])[:2] == ["job.lease", "job.complete"]
    assert answered(ada.get("/api/wallet"))["balance"] == 97


def test_what_one_try_uploaded_is_no_result_of_the_next(
    app: Flask, gpu: Gpu, ada: Caller, backend: Backend
) -> None:
    """Each lease has addresses of its own: a late worker writes beside, never over it."""
    job = ordered(ada, gpu.fleet)
    first = held(gpu)
    answered(gpu.call("requeue", lease_of(first) | {"reason": "spot"}))
    second = held(gpu)
    assert send(app, second["output_url"], second["output_headers"]).status_code == 200
    assert send(app, first["output_url"], first["output_headers"], b"late").status_code == 200
    refused(gpu.call("complete", lease_of(first) | {"outputs": [output()]}), 409, "lease_lost")
    answered(gpu.call("complete", lease_of(second) | {"outputs": [output()]}))
    [made] = job_of(ada, job)["outputs"]
    assert app.test_client().get(made["url"], buffered=True).data != b"late"


def worker_row(backend: Backend, gpu: Gpu) -> Worker:
    with backend.databases.central(read_only=True) as session:
        return session.scalars(select(Worker).where(Worker.worker_id == gpu.worker_id)).one()


def change(backend: Backend, gpu: Gpu, **values: Any) -> None:
    with backend.databases.central() as session:
        session.execute(update(Worker).where(Worker.worker_id == gpu.worker_id).values(values))


def test_every_call_shows_that_a_worker_is_there(gpu: Gpu, backend: Backend) -> None:
    """Or else a worker that only polls would be taken for gone."""
    long_ago = utcnow() - timedelta(minutes=2)
    change(backend, gpu, last_seen_at=long_ago)
    assert gpu.poll() is None
    assert worker_row(backend, gpu).last_seen_at > long_ago


def test_a_locked_out_worker_is_not_seen(gpu: Gpu, backend: Backend) -> None:
    long_ago = utcnow() - timedelta(minutes=2)
    change(backend, gpu, last_seen_at=long_ago, is_approved=False)
    for name in ("poll", "heartbeat", "deregister"):
        refused(gpu.call(name), 403, "forbidden")
    assert worker_row(backend, gpu).last_seen_at == long_ago
    anew = Gpu(gpu.app, gpu.fleet, gpu.worker_id)
    anew.token = gpu.token
    refused(anew.register(), 403, "forbidden")


def test_a_draining_workers_poll_writes_nothing(gpu: Gpu, ada: Caller, backend: Backend) -> None:
    ordered(ada, gpu.fleet)
    change(backend, gpu, is_draining=True)
    with nothing_written(backend):
        assert gpu.poll() is None


@pytest.mark.parametrize(
    "body",
    [
        {"error": "x" * 3_000_000},
        {"error": "x", "trace": "y" * 3_000_000},
        {"error": "\u202e" * 1000},
        {"error": ""},
    ],
)
def test_an_error_of_any_size_ends_the_job(
    gpu: Gpu, ada: Caller, backend: Backend, body: Json
) -> None:
    job = ordered(ada, gpu.fleet)
    leased = held(gpu)
    answered(gpu.call("fail", lease_of(leased) | body))
    shown = job_of(ada, job)
    assert (shown["status"], shown["refunded"]) == ("failed", True)
    assert 0 < len(shown["error"]["message"]) <= 300
    assert len(row(backend, leased).last_error or "") <= 20_000


def test_a_body_that_is_too_large_is_refused(plain_app: Flask, plain_backend: Backend) -> None:
    gpu = Gpu(plain_app, "gpu-default").join()
    with nothing_written(plain_backend):
        refused(gpu.call("fail", {"error": "x" * 5_000_000}), 413, "body_too_large")
