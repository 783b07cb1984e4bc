"""Spans of control tasks, and of what they ask of others over HTTP (models/spans.py)."""

from typing import Any

from celery import signals

from models import spans, traces

SERVICE = "comfyfleet-control"


def install() -> None:
    """Before anything else that hears of tasks, so that all of it is in their spans."""
    if not spans.can_be_sent():
        return
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.instrumentation.requests import RequestsInstrumentor

    CeleryInstrumentor().instrument()
    RequestsInstrumentor().instrument()
    traces.open_span = spans.traceparent
    for in_its_process in (
        signals.worker_ready,  # with threads: by now beat has a process of its own
        signals.worker_process_init,
        signals.beat_init,
        signals.beat_embedded_init,
    ):
        in_its_process.connect(_begin, weak=False)
    for at_its_end in (signals.worker_shutdown, signals.worker_process_shutdown):
        at_its_end.connect(_end, weak=False)


def _begin(**_: Any) -> None:
    spans.begin(SERVICE)


def _end(**_: Any) -> None:
    spans.end()
