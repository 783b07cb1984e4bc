"""Spans of requests (models/spans.py). They begin in gunicorn's workers: gunicorn_hooks.py."""

import os

from flask import Flask

from models import spans, traces

QUIET = "healthz,readyz,metrics"  # asked every few seconds, by nobody who wonders


def install(app: Flask) -> None:
    """Before anything else that happens with a request, so that all of it is in its span."""
    if not spans.can_be_sent():
        return
    from opentelemetry.instrumentation.flask import FlaskInstrumentor

    chosen = any(f"OTEL_PYTHON_{which}EXCLUDED_URLS" in os.environ for which in ("", "FLASK_"))
    FlaskInstrumentor.instrument_app(
        app, enable_commenter=False, excluded_urls=None if chosen else QUIET
    )
    traces.open_span = spans.traceparent
