"""Spans of real processes, at a real collector: one trace from the order to the report."""

import secrets
from pathlib import Path

import pytest

from scripts.server_process import free_port
from tests.collector import Collector, Span, collector
from tests.end_to_end import jobs
from tests.end_to_end.house import House
from tests.end_to_end.running_part import until

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "200"}


def order(house: House, trace_id: str) -> str:
    body = {
        "effect_id": "image-blur",
        "video_id": house.video_id,
        "inputs": {},
        "idempotency_key": secrets.token_hex(),
    }
    headers = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
    return str(house.customer.call("POST", "/api/ai-jobs", json=body, headers=headers)["id"])


def chain(span: Span, spans: list[Span]) -> list[str]:
    """The span, what it is a part of, and so on."""
    by_id = {one.span_id: one for one in spans}
    names = [span.name]
    while (parent := by_id.get(span.parent_id)) is not None:
        span = parent
        names.append(span.name)
    return names


@pytest.mark.slow
def test_spans_of_web_and_worker_arrive_and_are_one_trace(told_more: House) -> None:
    house = told_more
    trace_id = secrets.token_hex(16)
    with collector() as spans_at:
        house.told |= SOON | {"OTEL_EXPORTER_OTLP_ENDPOINT": spans_at.url}
        house.restart_ours()
        job_id = order(house, trace_id)
        jobs.require_completed(house, job_id)
        steps = {"job", "assets", "run", "upload", "GET", "PUT"}
        names = steps | {"POST /api/ai-jobs", "POST /api/worker/complete"}
        until(
            "all spans arrive",
            lambda: names <= {span.name for span in spans_at.of_trace(trace_id)},
        )
        until("control's too", lambda: by_service(spans_at, "comfyfleet-control"))
        house.workers[0].stop()  # what it had not sent yet is sent now
        found = spans_at.of_trace(trace_id)
    assert {span.service for span in found} == {"comfyfleet-web", "comfyfleet-gpu-worker"}
    of_order = [span for span in found if "POST /api/ai-jobs" in chain(span, found)]
    assert len(of_order) == len(found), "all of it is a part of the order"
    assert {"job", "POST /api/ai-jobs"} < set(chain(named("run", found), found))
    asked = [span.name for span in found if span.attributes.get("db.system") == "postgresql"]
    assert "identify" in asked, "of the hot path"
    assert any(name.startswith("SELECT") for name in asked), "of SQLAlchemy"
    [completing] = [
        span
        for span in found
        if span.name == "POST /api/worker/complete" and span.service == "comfyfleet-web"
    ]
    assert chain(completing, found)[1:3] == ["POST /api/worker/complete", "job"]
    require_no_secret(house, spans_at)


def named(name: str, found: list[Span]) -> Span:
    [span] = [span for span in found if span.name == name]
    return span


def by_service(spans_at: Collector, service: str) -> list[Span]:
    return [span for span in list(spans_at.spans) if span.service == service]


def require_no_secret(house: House, spans_at: Collector) -> None:
    said = "".join(span.text for span in spans_at.spans)
    assert "signature=" not in said
    known = [value for name, value in house.stack.secrets.items() if not name.endswith("email")]
    assert [value for value in [*known, house.customer.token] if value in said] == []


@pytest.mark.slow
def test_a_collector_that_is_away_costs_no_job_and_no_end(told_more: House) -> None:
    house = told_more
    house.told |= SOON | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    house.restart_ours()
    jobs.require_completed(house, order(house, secrets.token_hex(16)))
    for part in (house.workers[0], house.control, house.web):
        part.begin_stop()
        assert part.exit_code() == 0


@pytest.mark.slow
def test_without_the_packages_one_line_says_so_and_all_goes_on(
    told_more: House, tmp_path: Path
) -> None:
    """A folder ahead of the installed packages makes them as if they were not there."""
    house = told_more
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry/__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'opentelemetry'\")\n"
    )
    code = house.web.part.environment["PYTHONPATH"]
    house.told |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "PYTHONPATH": f"{tmp_path}:{code}",
    }
    parts = (house.web, house.control, house.workers[0])
    for part in parts:
        part.stop()
    before = {part.name: len(part.log.read_text()) for part in parts}
    for part in parts:
        part.start()
    jobs.require_completed(house, order(house, secrets.token_hex(16)))
    for part in parts:
        said = part.log.read_text()[before[part.name] :]
        assert said.count("Spans are wanted, but none will be sent") == 1, said
        assert "pip install 'comfyfleet[tracing]'" in said
