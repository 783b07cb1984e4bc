"""Spans for a collector (OpenTelemetry), if the environment asks for them.

OTEL_EXPORTER_OTLP_ENDPOINT and its standard relatives switch them on; the packages come with
the extra `tracing`. Without either, nothing in here does anything. A trace is the one that
logs, tickets and leases carry (`traceparent`), and what leaves is scrubbed as log lines are.

The thread that sends does not live through a fork: a process begins when it has been forked.

This file is there twice, like logs.py.
"""

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from .log_secrets import scrub, scrubbed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger(__name__)

END_SECONDS = 1.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

_provider: "TracerProvider | None" = None


def are_wanted() -> bool:
    exporter, is_disabled = _environ("OTEL_TRACES_EXPORTER"), _environ("OTEL_SDK_DISABLED")
    if is_disabled == "true" or exporter == "none":
        return False
    return bool(exporter) or any(map(_environ, _ENDPOINTS))


def obstacle() -> str | None:
    """Why they can't be sent, in words."""
    if (exporter := _environ("OTEL_TRACES_EXPORTER")) not in ("", "otlp"):
        return f"OTEL_TRACES_EXPORTER is {exporter!r}; only `otlp` is known here"
    protocol = next(filter(None, map(_environ, _PROTOCOLS)), "http/protobuf")
    if protocol != "http/protobuf":
        return f"the protocol {protocol!r} is asked for; only `http/protobuf` is known here"
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.instrumentation.celery
        import opentelemetry.sdk.trace.export  # noqa: F401
    except ImportError as missing:
        return f"OpenTelemetry is not installed ({missing}): pip install 'comfyfleet[tracing]'"
    return None


def can_be_sent() -> bool:
    return are_wanted() and obstacle() is None


def say_obstacle() -> None:
    """Once, by whoever starts the other processes; those begin in silence or not at all."""
    if are_wanted() and (why := obstacle()):
        logger.warning("Spans are wanted, but none will be sent: %s.", why)


def begin(service: str) -> None:
    """Spans of this process are sent from here on, if they are wanted and can be."""
    global _provider
    if _provider is not None or not can_be_sent():
        return
    try:
        _provider = _started(service)
    except Exception as error:  # a setting of OpenTelemetry's; the work goes on without
        logger.warning("Spans are wanted, but none will be sent: %s", error)


def are_sent() -> bool:
    return _provider is not None


def end() -> None:
    """Send the last ones, if the collector takes them at once."""
    if _provider is not None:
        last = threading.Thread(target=_provider.shutdown, daemon=True)
        last.start()
        last.join(END_SECONDS)


def span(
    name: str, *, within: str = "", is_call: bool = False, **attributes: str
) -> AbstractContextManager[Any]:
    """What is done in here, as a part of the open span, or else of the trace that is given.

    What belongs to no trace gets no span: nobody would look for it.
    """
    if _provider is None:
        return nullcontext()
    from opentelemetry import trace

    here = trace.get_current_span()
    context, links = _elsewhere(within, here.get_span_context()) if within else (None, [])
    if context is None and not here.is_recording():
        return nullcontext()
    return _provider.get_tracer("comfyfleet").start_as_current_span(
        name,
        context=context,
        links=links,
        kind=trace.SpanKind.CLIENT if is_call else trace.SpanKind.INTERNAL,
        attributes=attributes,
    )


def _elsewhere(within: str, here: Any) -> tuple[Any, list[Any]]:
    """Where a span of another trace begins, and from where one came to it; None if this is it."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    given = TraceContextTextMapPropagator().extract({"traceparent": within})
    asked = trace.get_current_span(given).get_span_context()
    if not asked.is_valid or asked.trace_id == here.trace_id:
        return None, []
    return given, [trace.Link(here)] if here.is_valid else []


def traceparent() -> str | None:
    """The open span, for others to go on with."""
    if _provider is None:
        return None
    from opentelemetry import trace

    here = trace.get_current_span().get_span_context()
    if not here.is_valid:
        return None
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"


def _environ(name: str) -> str:
    return os.environ.get(name, "").strip().lower()


def _started(service: str) -> "TracerProvider":
    from opentelemetry import propagate, trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": service}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    trace.set_tracer_provider(provider)
    # No baggage: what a client sends along is not to be passed on to others.
    propagate.set_global_textmap(TraceContextTextMapPropagator())
    return provider


def _exporter() -> "SpanExporter":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    class Scrubbing(OTLPSpanExporter):
        def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
            return super().export([_without_secrets(span) for span in spans])

    return Scrubbing()


def _without_secrets(span: "ReadableSpan") -> "ReadableSpan":
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import Status

    words = span.status.description
    return ReadableSpan(
        name=scrub(span.name),
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=scrubbed(span.attributes),
        events=[Event(e.name, scrubbed(e.attributes), e.timestamp) for e in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code, scrub(words) if words else None),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
