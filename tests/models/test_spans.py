"""Spans: on when the environment asks for them, off otherwise, and never in the way."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from models import spans
from tests.collector import collector

ROOT = Path(__file__).parents[2]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GIVEN = f"00-{TRACE}-00f067aa0ba902b7-01"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


def run(program: str, environment: Mapping[str, str]) -> str:
    """A process of its own says this; it ends well."""
    done = subprocess.run(
        [sys.executable, "-c", f"import os, sys\nfrom models import logs, spans\n{program}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("told", "are_wanted"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "false"}, True),
    ],
)
def test_the_standard_variables_switch_them_on(
    environment: pytest.MonkeyPatch, told: dict[str, str], are_wanted: bool
) -> None:
    for name, value in told.items():
        environment.setenv(name, value)
    assert spans.are_wanted() is are_wanted


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({"OTEL_TRACES_EXPORTER": "console"}, "'console'"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "'grpc'"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "'http/json'"),
    ],
)
def test_what_is_not_known_here_is_said_in_one_line(told: dict[str, str], word: str) -> None:
    program = "logs.start('text'); spans.say_obstacle(); spans.begin('x'); spans.end()"
    [line] = run(program, ENDPOINT | told).splitlines()
    assert "none will be sent" in line
    assert word in line
    assert run(f"{program}; assert not spans.are_sent()", ENDPOINT | told)


def test_nothing_is_loaded_and_nothing_done_while_they_are_off() -> None:
    program = (
        "from webapp import tracing\n"
        "from models.session import Databases\n"
        "spans.say_obstacle(); spans.begin('x')\n"
        f"with spans.span('work', within='{GIVEN}'): print(spans.traceparent())\n"
        "spans.end()\n"
        # The client of Redis loads a part of OpenTelemetry by itself, for metrics.
        "ours = ('exporter', 'instrumentation', 'sdk.trace')\n"
        "print([o for o in ours if f'opentelemetry.{o}' in sys.modules])\n"
    )
    assert run(program, {}) == "None\n[]\n"


@pytest.mark.parametrize(
    "odd",
    [
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
        {"OTEL_TRACES_SAMPLER": "by-mood"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "0"},
        {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/such/file"},
        {"OTEL_EXPORTER_OTLP_HEADERS": "\x7f=,,=="},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "no address"},
        {"OTEL_RESOURCE_ATTRIBUTES": "=,,"},
    ],
)
def test_settings_that_opentelemetry_does_not_like_stop_nobody(odd: dict[str, str]) -> None:
    program = (
        "logs.start('text'); spans.begin('x')\n"
        f"with spans.span('work', within='{GIVEN}'): print('worked')\n"
        "spans.end()\n"
    )
    assert "worked" in run(program, ENDPOINT | odd)


def test_what_is_a_part_of_a_trace_is_sent_and_what_belongs_to_none_is_not() -> None:
    program = (
        "spans.begin('mine')\n"
        "with spans.span('alone'): assert spans.traceparent() is None\n"
        f"with spans.span('job', within='{GIVEN}'):\n"
        f"    with spans.span('step'): assert spans.traceparent().startswith('00-{TRACE}')\n"
        f"    with spans.span('call', within='{GIVEN}', is_call=True): pass\n"
        "spans.end()\n"
    )
    with collector() as at:
        run(program, {"OTEL_EXPORTER_OTLP_ENDPOINT": at.url})
    sent = {span.name: span for span in at.spans}
    assert set(sent) == {"job", "step", "call"}
    assert {span.trace_id for span in at.spans} == {TRACE}
    assert sent["job"].parent_id == GIVEN.split("-")[2]
    assert sent["step"].parent_id == sent["call"].parent_id == sent["job"].span_id
    assert sent["job"].service == "mine"


def test_a_name_of_ones_own_for_the_service_counts() -> None:
    program = f"spans.begin('x')\nwith spans.span('work', within='{GIVEN}'): pass\nspans.end()"
    for told in ({"OTEL_SERVICE_NAME": "gpu"}, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=gpu"}):
        with collector() as at:
            run(program, {"OTEL_EXPORTER_OTLP_ENDPOINT": at.url} | told)
        assert [span.service for span in at.spans] == ["gpu"]


def test_secrets_do_not_leave_with_a_span() -> None:
    secret = "very-secret-indeed"
    program = (
        "spans.begin('x')\n"
        "from models.log_secrets import keep_secret\n"
        f"keep_secret('{secret}')\n"
        f"told = {{'http.url': 'http://h/p?signature=abcdefgh', 'a.token': 'abcdefgh',"
        f" 'note': '{secret}'}}\n"
        "try:\n"
        f"    with spans.span('GET http://h/p?signature=abcdefgh', within='{GIVEN}', **told):\n"
        f"        raise ValueError('Bearer abcdefgh {secret}')\n"
        "except ValueError: pass\n"
        "spans.end()\n"
    )
    with collector() as at:
        run(program, {"OTEL_EXPORTER_OTLP_ENDPOINT": at.url})
    [span] = at.spans
    assert "ValueError" in span.text
    assert span.attributes["http.url"] == "http://h/p?***"
    assert secret not in span.text
    assert "abcdefgh" not in span.text


def test_a_process_that_was_forked_sends_its_own() -> None:
    program = (
        "for number in range(2):\n"
        "    if os.fork() == 0:\n"
        "        spans.begin('child')\n"
        f"        with spans.span(f'work {{number}}', within='{GIVEN}'): pass\n"
        "        spans.end(); os._exit(0)\n"
        "for number in range(2): assert os.wait()[1] == 0\n"
    )
    with collector() as at:
        run(program, {"OTEL_EXPORTER_OTLP_ENDPOINT": at.url})
    assert sorted(span.name for span in at.spans) == ["work 0", "work 1"]
