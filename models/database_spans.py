"""Spans of what is asked of databases, within a span that is open already (spans.py)."""

from typing import Any

from sqlalchemy import Engine

from models import spans


def watch(engine: Engine) -> None:
    """From here on; before a fork too, because nothing is sent until somebody begins."""
    if not spans.can_be_sent():
        return
    from opentelemetry import metrics, trace
    from opentelemetry.instrumentation.sqlalchemy.engine import EngineTracer

    class WithinWork(EngineTracer):
        def _before_cur_exec(self, *told: Any) -> Any:
            if trace.get_current_span().is_recording():
                return super()._before_cur_exec(*told)  # type: ignore[no-untyped-call]
            return told[2], told[3]  # the statement and its parameters, as they are

    connections = metrics.get_meter("comfyfleet").create_up_down_counter("connections")
    WithinWork(trace.get_tracer("comfyfleet"), engine, connections)  # type: ignore[no-untyped-call]
