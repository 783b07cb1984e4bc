"""A trace goes with an order: into its row, its ticket, its lease, the audit log and every line."""

import json
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from redis import Redis
from sqlalchemy import select
from werkzeug.test import TestResponse

from models import logs, traces
from models.audit import AuditLog
from models.dispatches import Dispatch
from tasks.backend import Backend
from tests.fixtures import FLEET_SECRET
from tests.webapp.calls import Caller, Json, MakeCaller, answered, completed
from tests.webapp.gpus import Gpu, held, lease_of, output, send

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{PARENT}-01"


def order(
    caller: Caller, effect: str, traceparent: str | None = None, *, key: str | None = None
) -> TestResponse:
    body = {"effect_id": effect, "idempotency_key": key or uuid4().hex}
    headers = {"traceparent": traceparent} if traceparent else {}
    return caller.post("/api/ai-jobs", json=body, headers=headers)


def row(backend: Backend, job_id: str) -> Dispatch:
    with backend.databases.central(read_only=True) as session:
        return session.scalars(select(Dispatch).where(Dispatch.tenant_job_id == UUID(job_id))).one()


def audited(backend: Backend, dispatch_id: UUID) -> dict[str, str | None]:
    """The trace of each event of a job."""
    with backend.databases.central(read_only=True) as session:
        rows = session.scalars(select(AuditLog).where(AuditLog.dispatch_id == dispatch_id))
        return {row.event: row.details.get("trace_id") for row in rows}


def said(caplog: pytest.LogCaptureFixture) -> list[Json]:
    return [json.loads(text) for text in caplog.text.splitlines()]


@pytest.fixture
def in_lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged, in the form in which it leaves a process."""
    caplog.handler.setFormatter(logs.JsonLines())
    caplog.set_level(logging.INFO)
    return caplog


def test_an_order_joins_the_trace_of_its_caller(ada: Caller, effect: str, backend: Backend) -> None:
    answer = order(ada, effect, GIVEN)
    assert answer.headers["X-Trace-Id"] == TRACE
    stored = row(backend, answered(answer, 201)["id"])
    assert stored.trace_id == TRACE
    assert PARENT not in str(stored.traceparent)


@pytest.mark.parametrize(
    "header", [None, "hello", f"00-{'0' * 32}-{PARENT}-01", f"{GIVEN},{GIVEN}"]
)
def test_an_order_without_a_trace_begins_one(
    ada: Caller, effect: str, backend: Backend, header: str | None
) -> None:
    answer = order(ada, effect, header)
    stored = row(backend, answered(answer, 201)["id"])
    assert stored.trace_id == answer.headers["X-Trace-Id"] != TRACE


def test_a_repeated_order_keeps_the_trace_of_the_first(
    ada: Caller, effect: str, backend: Backend
) -> None:
    first = answered(order(ada, effect, GIVEN, key="again"), 201)
    answered(order(ada, effect, key="again"), 200)
    assert row(backend, first["id"]).trace_id == TRACE


def test_the_ticket_and_the_lease_carry_what_is_stored(
    ada: Caller, effect: str, gpu: Gpu, backend: Backend
) -> None:
    job = answered(order(ada, effect, GIVEN), 201)
    backend.later.close()
    with Redis.from_url(backend.settings.redis_url) as redis:
        ticket = json.loads(redis.lindex(gpu.fleet, 0))  # type: ignore[arg-type]
    stored = row(backend, job["id"]).traceparent
    assert ticket["headers"]["traceparent"] == stored == held(gpu)["trace"]


@pytest.mark.parametrize("report", ["complete", "fail", "retry", "requeue"])
def test_every_audit_row_of_a_job_has_its_trace(
    ada: Caller, effect: str, gpu: Gpu, backend: Backend, report: str
) -> None:
    job = answered(order(ada, effect, GIVEN), 201)
    leased = held(gpu)
    reported(gpu, report, leased)
    if report != "complete":
        answered(ada.post(f"/api/ai-jobs/{job['id']}/cancel"))
    traced = audited(backend, UUID(leased["dispatch_id"]))
    assert {"job.lease", f"job.{report}"} <= set(traced)
    assert set(traced.values()) == {TRACE}


def reported(gpu: Gpu, report: str, leased: Json) -> None:
    told: dict[str, Callable[[], Any]] = {
        "complete": lambda: gpu.call("complete", lease_of(leased) | {"outputs": [output()]}),
        "fail": lambda: gpu.call("fail", lease_of(leased) | {"error": "no"}),
        "retry": lambda: gpu.call("fail", lease_of(leased) | {"error": "no", "retryable": True}),
        "requeue": lambda: gpu.call("requeue", lease_of(leased) | {"reason": "spot"}),
    }
    if report == "complete":
        assert send(gpu.app, leased["output_url"], leased["output_headers"]).status_code == 200
    answered(told[report]())


def test_what_is_about_no_job_has_the_trace_of_its_request(
    app: Flask, effect: str, backend: Backend
) -> None:
    gpu = Gpu(app, effect)
    new = {"worker_id": gpu.worker_id, "fleet_slug": effect, "stage": "dev"}
    headers = {"traceparent": GIVEN, "X-Fleet-Secret": FLEET_SECRET}
    answered(gpu.call("register", new, **headers), 201)
    with backend.databases.central(read_only=True) as session:
        found = session.scalars(select(AuditLog).where(AuditLog.worker_id == gpu.worker_id)).one()
    assert found.details["trace_id"] == TRACE


def test_a_report_is_told_in_the_trace_of_its_job_whatever_the_worker_sends(
    ada: Caller, effect: str, gpu: Gpu, in_lines: pytest.LogCaptureFixture
) -> None:
    job = answered(order(ada, effect, GIVEN), 201)
    leased = held(gpu)
    in_lines.clear()
    reported(gpu, "fail", leased)
    [line] = [one for one in said(in_lines) if one["logger"] == "tasks.outcomes"]
    assert line["level"] == "warning"
    assert (line["job_id"], line["trace_id"]) == (job["id"], TRACE)
    assert (line["worker_id"], line["dispatch_id"]) == (gpu.worker_id, leased["dispatch_id"])
    assert line["tenant_id"] == str(ada.person.tenant_id)


def test_an_unexpected_error_is_found_by_what_its_answer_says(
    plain_app_with: Callable[..., Flask],
    plain_caller: MakeCaller,
    in_lines: pytest.LogCaptureFixture,
) -> None:
    app = plain_app_with()
    app.add_url_rule("/breaks", view_func=lambda: 1 / 0)
    ada = Caller(app, plain_caller().person)
    answer = ada.get("/breaks?signature=very-secret")
    assert answer.status_code == 500
    [line] = [one for one in said(in_lines) if one["level"] == "error"]
    assert line["request_id"] == answer.get_json()["request_id"]
    assert line["trace_id"] == answer.headers["X-Trace-Id"]
    assert "ZeroDivisionError" in line["exception"]
    assert ada.person.token not in json.dumps(line)


def test_nothing_of_a_request_is_known_after_it(ada: Caller, effect: str) -> None:
    answered(order(ada, effect), 201)
    assert logs.known() == {}
    assert traces.current() != traces.current(), "each is a new one: none is at hand"


def test_a_completed_job_is_one_trace_from_order_to_end(
    ada: Caller, effect: str, backend: Backend
) -> None:
    job = answered(order(ada, effect, GIVEN), 201)
    completed(ada, job["id"], b"the result")
    assert set(audited(backend, row(backend, job["id"]).id).values()) == {TRACE}
