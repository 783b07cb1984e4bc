"""Traces: one id for all that is done for one request, in whichever process (W3C Trace Context).

A caller may bring a trace along in its header `traceparent`; what can't be read is left, and a
trace of our own begins. What is stored with a dispatch, and travels in its ticket and its
lease, is the request that ordered it.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from models import logs

_FORM = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})"
    r"-(?P<parent>(?!0{16})[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)

_current: ContextVar[str | None] = ContextVar("traceparent", default=None)


def _no_span() -> str | None:
    return None


#: The span that is open here, as a traceparent, if somebody collects spans (tasks/tracing.py).
open_span: Callable[[], str | None] = _no_span


def begin(header: str | None = None) -> str:
    """The trace of the work that begins in this thread: its caller's, or a new one."""
    traceparent = open_span() or continued(header) or new()
    _current.set(traceparent)
    logs.bind(trace_id=id_of(traceparent))
    return traceparent


def current() -> str:
    """Of the work at hand."""
    return _current.get() or new()


def end() -> None:
    _current.set(None)


@contextmanager
def about(item: object) -> Iterator[None]:
    """In here lines have the ids of this job or dispatch, and its trace or one of its own."""
    ids = getattr(item, "ids", None)
    if ids is None:
        yield
        return
    before = _current.get()
    with logs.about(**ids):
        _current.set(getattr(item, "traceparent", None) or new())
        logs.bind(trace_id=id_of(_current.get()))
        try:
            yield
        finally:
            _current.set(before)


def new() -> str:
    # Marked as sampled: it is in our logs, and whoever joins it later may collect spans.
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def continued(header: str | None) -> str | None:
    """The caller's trace with a step of our own in it; None if the header is no traceparent."""
    found = _FORM.fullmatch(header or "")
    if found is None or (found["version"] == "00" and found["more"]):
        return None
    sampled = int(found["flags"], 16) & 1
    return f"00-{found['trace']}-{secrets.token_hex(8)}-{sampled:02x}"


def id_of(traceparent: str | None) -> str | None:
    """The part that is the same in all processes."""
    found = _FORM.fullmatch(traceparent or "")
    return found["trace"] if found else None
