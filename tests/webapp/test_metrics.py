"""/metrics and its JSON for administrators: who may read them, and whether they are true."""

import socket
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import make_url
from werkzeug.test import TestResponse

from models import fleets
from models.base import utcnow
from models.settings import BadSetting, Settings
from models.users import Role
from tasks import figures, metrics
from tasks.backend import Backend
from tests.fixtures import emptied, for_tests
from tests.webapp.calls import Caller, MakeCaller, answered, completed, failed, ordered, refused
from tests.webapp.conftest import AppWith, running
from tests.webapp.wires import Wire

NEAR, FAR = "127.0.0.1", "203.0.113.7"
Labels = frozenset[tuple[str, str]]


def ask(app: Flask, *, remote: str = NEAR, **headers: str) -> TestResponse:
    return app.test_client().get(
        "/metrics", headers=headers, environ_overrides={"REMOTE_ADDR": remote}
    )


def told(app: Flask) -> dict[tuple[str, Labels], float]:
    """Every sample by its name and labels."""
    answer = ask(app)
    assert answer.status_code == 200, answer.text
    assert answer.content_type.startswith("text/plain; version=")
    samples: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in samples, f"{key} is told twice"
            samples[key] = sample.value
    return samples


def of(app: Flask, name: str, **labels: str) -> float | None:
    return told(app).get((f"comfyfleet_{name}", frozenset(labels.items())))


# Who may read it


def test_machines_nearby_may_read_it_and_others_need_the_token(plain_app_with: AppWith) -> None:
    app = plain_app_with(metrics_token="old-token new-token")
    assert ask(app).status_code == 200
    assert ask(app, remote="::1").status_code == 200
    assert ask(app, remote="::ffff:127.0.0.1").status_code == 200
    refused(ask(app, remote=FAR), 401, "unauthorized")
    for token in ("old-token", "new-token"):
        assert ask(app, remote=FAR, Authorization=f"Bearer {token}").status_code == 200
    for token in ("new-toke", "old-token new-token", "x", "é"):
        wrong = f"Bearer {token}".encode().decode("latin-1")
        for remote in (NEAR, FAR):
            refused(ask(app, remote=remote, Authorization=wrong), 401, "unauthorized")


def test_without_a_token_none_opens_it(plain_app: Flask) -> None:
    for given in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer x"}):
        refused(ask(plain_app, remote=FAR, **given), 401, "unauthorized")


def test_a_sign_in_does_not_open_it(plain_app: Flask, plain_caller: MakeCaller) -> None:
    admin = plain_caller(role=Role.ADMIN)
    refused(admin.get("/metrics"), 401, "unauthorized")


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_who_comes_through_a_proxy_of_this_machine_is_not_nearby(
    plain_app: Flask, header: str
) -> None:
    refused(ask(plain_app, **{header: FAR}), 401, "unauthorized")


def test_behind_a_proxy_that_is_trusted_the_callers_own_address_counts(
    plain_app_with: AppWith,
) -> None:
    app = plain_app_with(trusted_proxies=1, metrics_networks="198.51.100.0/24")
    assert ask(app, **{"X-Forwarded-For": "198.51.100.9"}).status_code == 200
    refused(ask(app, **{"X-Forwarded-For": FAR}), 401, "unauthorized")
    refused(ask(app), 401, "unauthorized")


def test_guessing_tokens_is_limited(plain_app_with: AppWith, plain_app: Flask) -> None:
    usual = plain_app.extensions["comfyfleet"].settings.rate_limits
    few = usual.replace("auth=100000/minute", "auth=3/minute")
    app = plain_app_with(metrics_token="right", rate_limits=few)
    remote = f"203.0.113.{uuid4().int % 250}"
    codes = [ask(app, remote=remote, Authorization="Bearer x").status_code for _ in range(5)]
    assert codes == [401, 401, 401, 429, 429]


@pytest.mark.parametrize("words", ["here", "10.0.0.1/8", "10.0.0.0/33"])
def test_networks_that_are_none_stop_the_start(plain_app_with: AppWith, words: str) -> None:
    with pytest.raises(BadSetting, match="COMFYFLEET_METRICS_NETWORKS"):
        plain_app_with(metrics_networks=words)


# What it tells


@pytest.fixture
def busy(app: Flask, caller: MakeCaller, effect: str) -> str:
    """A fleet with a job that completed, one that failed and one that waits; its slug."""
    ada = caller(tokens=100)
    completed(ada, ordered(ada, effect)["id"])
    failed(ada, ordered(ada, effect)["id"])
    ordered(ada, effect)
    return effect


def test_fleets_are_told_as_they_stand(app: Flask, busy: str) -> None:
    samples = told(app)
    labels = frozenset({("fleet", busy), ("stage", "dev")})
    shown = {
        name.removeprefix("comfyfleet_"): value
        for (name, found), value in samples.items()
        if found == labels
    }
    assert shown["queue_depth"] == shown["jobs_waiting"] == 1
    assert (shown["completed_count"], shown["failed_count"]) == (1, 1)
    assert shown["error_rate"] == 0.5
    assert shown["backlog_per_instance"] == 1
    assert shown["active_workers"] == shown["available_capacity"] == 0
    assert shown["job_processing_p50_seconds"] >= 0
    assert shown["oldest_waiting_seconds"] < 600
    assert shown["lease_expired_count"] == shown["spot_interruption_count"] == 0


def test_a_fleet_with_nothing_to_do_is_told_without_a_median(app: Flask, effect: str) -> None:
    labels = {"fleet": effect, "stage": "dev"}
    assert of(app, "queue_depth", **labels) == 0
    assert of(app, "job_processing_p50_seconds", **labels) is None


def test_counted_figures_are_told_as_the_control_worker_kept_them(
    app: Flask, backend: Backend, busy: str
) -> None:
    later = utcnow() + timedelta(days=1 + uuid4().int % 10_000)
    metrics.run_once(backend, now=later)
    samples = told(app)

    def counted(name: str, **labels: str) -> float:
        return samples[f"comfyfleet_{name}", frozenset(labels.items())]

    assert counted("tokens_total", movement="credited") >= 100
    assert counted("tokens_total", movement="consumed") >= 3
    assert counted("tokens_total", movement="refunded") >= 3
    assert counted("ledger_difference_tokens", pool="main") == 0
    assert counted("orphaned_jobs_total") == counted("runpod_submission_failures_total") == 0
    assert counted("job_submission_latency_seconds_count") >= 0
    assert counted("counted_timestamp_seconds") == pytest.approx(later.timestamp())
    assert counted("control_task_late", task="reconcile") == 1  # nobody runs them here
    assert counted("control_task_finished_timestamp_seconds", task="reconcile") == 0
    assert counted("figures_up") == 1
    assert abs(counted("figures_timestamp_seconds") - time.time()) < 60


def test_requests_are_counted_by_route_and_never_by_what_is_asked_for(
    app: Flask, ada: Caller
) -> None:
    route = {"route": "/api/ai-jobs/<uuid:job_id>", "method": "GET"}
    before = of(app, "http_requests_total", **route, status="404") or 0
    for _ in range(3):
        refused(ada.get(f"/api/ai-jobs/{uuid4()}"), 404, "not_found")
    assert of(app, "http_requests_total", **route, status="404") == before + 3
    assert of(app, "http_request_seconds_count", **route) == of(
        app, "http_request_seconds_bucket", **route, le="+Inf"
    )
    text = ask(app).text
    assert str(ada.person.user_id) not in text
    assert str(ada.person.tenant_id) not in text


def test_strange_requests_make_no_labels_of_their_own(plain_app: Flask) -> None:
    client = plain_app.test_client()
    for method in ("BREW", "PROPFIND", "GET"):
        client.open(f"/nowhere/{uuid4()}", method=method)
    samples = told(plain_app)
    routes = {dict(labels).get("route") for _, labels in samples}
    methods = {dict(labels).get("method") for _, labels in samples}
    assert not [route for route in routes if route and "nowhere" in route]
    assert methods <= {None, "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "(other)"}
    assert (
        "comfyfleet_http_requests_total",
        frozenset({("route", "(none)"), ("method", "GET"), ("status", "404")}),
    ) in samples


# When something is away


def test_while_the_database_is_silent_the_rest_is_told(
    postgres_settings: Settings,
    tmp_path: Any,
    module_redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes connections and never says a word; connecting alone may take 5 s."""
    emptied(postgres_settings)
    settings = for_tests(postgres_settings, tmp_path, module_redis_url)
    where = make_url(settings.central_url)
    wire = Wire(where.host or "", where.port or 5432)
    wired = where.set(host="127.0.0.1", port=wire.port).render_as_string(hide_password=False)
    with running(replace(settings, central_url=wired)) as app:
        assert of(app, "figures_up") == 1
        app.extensions["comfyfleet.figures"]._found = None
        wire.cut()
        app.extensions["comfyfleet"].databases.engine("central").dispose()
        monkeypatch.setattr(figures, "WAIT_SECONDS", 0.5)
        with socket.create_server(("127.0.0.1", wire.port)):
            samples = told(app)
            assert app.extensions["comfyfleet.figures"]._reading.is_alive()
        assert samples["comfyfleet_figures_up", frozenset()] == 0
        assert [name for name, _ in samples if name == "comfyfleet_http_requests_total"]


def test_figures_of_a_moment_ago_do_while_new_ones_cannot_be_had(app: Flask, effect: str) -> None:
    recent = app.extensions["comfyfleet.figures"]
    assert of(app, "queue_depth", fleet=effect, stage="dev") == 0
    read, recent._read = recent._read, broken
    assert of(app, "queue_depth", fleet=effect, stage="dev") == 0
    found_at, found = recent._found
    recent._found = found_at - 61, found
    assert of(app, "queue_depth", fleet=effect, stage="dev") is None
    assert of(app, "figures_up") == 0
    recent._read = read
    assert of(app, "figures_up") == 1


def broken() -> Any:
    raise OSError("gone")


# For administrators


@pytest.fixture
def admin(caller: MakeCaller) -> Caller:
    return caller(role=Role.ADMIN)


def test_administrators_get_the_same_figures_as_json(app: Flask, admin: Caller, busy: str) -> None:
    body = answered(admin.get("/api/admin/metrics"))
    [fleet] = [one for one in body["fleets"] if one["slug"] == busy]
    labels = {"fleet": busy, "stage": "dev"}
    for name in ("queue_depth", "active_workers", "available_capacity", "backlog_per_instance",
                 "error_rate", "lease_expired_count", "spot_interruption_count",
                 "dead_letters_open"):  # fmt: skip
        assert fleet[name] == of(app, name, **labels), name
    assert fleet["job_processing_p50"] == of(app, "job_processing_p50_seconds", **labels)
    assert body["totals"]["queue_depth"] == sum(one["queue_depth"] for one in body["fleets"]) >= 1
    assert set(body["tokens"]) == {"credited", "reserved", "consumed", "refunded"}
    assert body["stage"] == "dev"


def test_nobody_else_gets_them(ada: Caller, app: Flask) -> None:
    refused(ada.get("/api/admin/metrics"), 403, "forbidden")
    refused(app.test_client().get("/api/admin/metrics"), 401, "unauthorized")


def test_without_figures_administrators_are_told_to_come_back(app: Flask, admin: Caller) -> None:
    recent = app.extensions["comfyfleet.figures"]
    (read, recent._read), found, recent._found = (recent._read, broken), recent._found, None
    refused(admin.get("/api/admin/metrics"), 503, "dependency_unavailable")
    recent._read, recent._found = read, found


def test_hundreds_of_fleets_are_told(postgres: Backend) -> None:
    with postgres.databases.central() as session:
        for number in range(200):
            fleets.put(session, stage="dev", slug=f"f-{number:03}", name="F")
    with running(postgres.settings) as app:
        depths = [
            value for (name, _), value in told(app).items() if name == "comfyfleet_queue_depth"
        ]
    assert depths == [0.0] * 200
