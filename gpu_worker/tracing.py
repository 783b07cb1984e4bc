"""Spans of jobs, and of files that are fetched and sent (spans.py). Nothing forks here."""

from gpu_worker import spans

SERVICE = "comfyfleet-gpu-worker"


def begin() -> None:
    spans.say_obstacle()
    spans.begin(SERVICE)
    if not spans.are_sent():
        return
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.instrumentation.requests import RequestsInstrumentor

    CeleryInstrumentor().instrument()
    RequestsInstrumentor().instrument()
