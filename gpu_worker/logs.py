"""What a process says: one line for each thing, as JSON for programs, with colours for people.

Every line brings along what is known of the work at hand (`bind`, `about`), so that whoever
has one id finds the rest. Libraries speak through the same handler, in the same form. What
opens a door to somebody is struck out of everything that leaves (log_secrets.py).

This file and log_secrets.py are there twice, in models/ and in gpu_worker/, because the GPU
worker ships alone. A test compares them, letter by letter.
"""

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from typing import Any, TextIO

from .log_secrets import scrub, scrubbed

logger = logging.getLogger(__name__)

FORMS = ("auto", "json", "text")
LEVELS = ("debug", "info", "warning", "error", "critical")

#: What is shown behind a line for people, and how much of it.
SHOWN = {"job_id": 36, "request_id": 8, "trace_id": 8}

#: Lines for every task, and for every look at a schema.
_TALKATIVE = ("celery.beat", "celery.worker.strategy", "celery.app.trace", "alembic")

_COLOURS = {"debug": 2, "info": 32, "warning": 33, "error": 31, "critical": 41}
_known: ContextVar[Mapping[str, str] | None] = ContextVar("known", default=None)
_always: dict[str, str] = {}


# The work at hand


def begin(**ids: object) -> None:
    """New work begins in this thread: a request, a task."""
    _known.set(_texts(ids))


def end() -> None:
    _known.set(None)


def bind(**ids: object) -> None:
    """More is known of the work at hand. Where none has begun, nobody would forget it again."""
    if (known := _known.get()) is not None:
        _known.set({**known, **_texts(ids)})


@contextmanager
def about(**ids: object) -> Iterator[None]:
    """Work of its own, in here; of what is around it as much is known as before."""
    before = _known.get()
    _known.set({**(before or {}), **_texts(ids)})
    try:
        yield
    finally:
        _known.set(before)


def known() -> Mapping[str, str]:
    return _known.get() or {}


def carried(step: Callable[[], None]) -> Callable[[], None]:
    """The step for a thread of its own, where it knows what is known here."""
    context = copy_context()
    return lambda: context.run(step)


def _texts(ids: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in ids.items() if value is not None}


# Lines

_ENCODER = json.JSONEncoder(default=str)
_LONGEST_MESSAGE, _LONGEST_TRACE = 4_000, 8_000  # a line has to fit through pipes and collectors
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # they would steer the terminal


class JsonLines(logging.Formatter):
    """Fields of its own come with `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        return _ENCODER.encode(self.fields(record))

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        at = datetime.fromtimestamp(record.created, UTC)
        told: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds")[: -len("+00:00")] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": scrub(_message(record))[:_LONGEST_MESSAGE],
            **_always,
            **known(),
        }
        if own := getattr(record, "fields", None):
            told |= scrubbed(own)
        if record.exc_info and record.exc_info[0] is not None:
            # The end of it says what happened.
            told["exception"] = scrub(self.formatException(record.exc_info))[-_LONGEST_TRACE:]
        if record.stack_info:
            told["stack"] = scrub(record.stack_info)[-_LONGEST_TRACE:]
        return told


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # of a library that gave the wrong arguments; the line still counts
        return f"{record.msg} {record.args}"


class TextLines(JsonLines):
    """For people at a terminal: when, how bad, what; then what it is about."""

    def __init__(self, *, has_colours: bool) -> None:
        super().__init__()
        self._has_colours = has_colours

    def format(self, record: logging.LogRecord) -> str:
        return text_of(self.fields(record), has_colours=self._has_colours)


def text_of(told: Mapping[str, Any], *, has_colours: bool) -> str:
    """The fields of a JSON line as people read them."""

    def painted(text: str, colour: int) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if has_colours else text

    level, message = str(told["level"]), str(told["message"])
    at = datetime.fromisoformat(str(told["time"])).astimezone()
    ids = [
        f"{name.removesuffix('_id')} {str(told[name])[:length]}"
        for name, length in SHOWN.items()
        if name in told and str(told[name]) not in message
    ]
    line = f"{at:%H:%M:%S} {painted(f'{level:<8}', _COLOURS.get(level, 0))} {_visible(message)}"
    if ids:
        line += "  " + painted(_visible(", ".join(ids)), 2)
    trace = told.get("exception") or told.get("stack")
    return f"{line}\n{_visible(str(trace))}" if trace else line


def _visible(text: str) -> str:
    return _UNSEEN.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def start(
    form: str = "auto", level: str = "info", *, stream: TextIO | None = None, **always: str
) -> None:
    """Whatever is said in this process from here on leaves through one handler, in one form.

    `auto` is text on a terminal and JSON elsewhere. `always` goes with every line.
    """
    stream = stream or sys.stderr
    is_terminal = stream.isatty()
    as_text = form == "text" or (form == "auto" and is_terminal)
    has_colours = is_terminal and "NO_COLOR" not in os.environ
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines(has_colours=has_colours) if as_text else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    _always.clear()
    _always.update(always)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda told: _uncaught(told.exc_type, told.exc_value, told.exc_traceback)


def say_at_once(message: str, *_: object) -> None:
    """For signal handlers: what they interrupted may be in the middle of writing a line."""
    told = logging.LogRecord(__name__, logging.INFO, "", 0, message, None, None)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            os.write(handler.stream.fileno(), f"{handler.format(told)}\n".encode())


def _uncaught(kind: Any, error: Any, trace: Any) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        logger.critical("Nobody caught this: %s", kind.__name__, exc_info=(kind, error, trace))
