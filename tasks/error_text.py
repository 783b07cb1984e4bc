"""What a user is told when a job fails: one sentence, with nothing of the inside in it.

Workers send whatever they have: ComfyUI's JSON, a traceback, a line. The operators keep all
of it; a user gets the part that says what went wrong, without paths, addresses or secrets.
"""

import json
import re
from typing import Any

NOTHING_TO_TELL = "Processing failed."
LONGEST = 300

_FIELDS = ("exception_message", "error_message")
_FIELD = re.compile(r"""["']?(?:exception_message|error_message)["']?\s*[:=]\s*(["'])(.+?)\1""")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Warning)\b:?\s*")
_TRACE_LINE = re.compile(r"""^\s*(Traceback \(|File "|raise |at \S+ ?\(|\^|~)""")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.I)
_PATH = re.compile(r"""(?<![\w.])(?:[A-Za-z]:)?(?:[\\/][\w.@ +-]*[\w.@+-])+[\\/]?|~/\S+""")
_SECRET = re.compile(r"\b[A-Za-z0-9_+/=-]{32,}")
_SPACES = re.compile(r"\s+")


def for_users(error: str) -> str:
    """The telling part of an error, fit for a user's eyes."""
    told = _from_json(error) or _from_text(error) or _telling_line(error)
    return _clean(told) or NOTHING_TO_TELL


def _from_json(error: str) -> str:
    try:
        found: Any = json.loads(error)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(found, dict):
        return ""
    for name in _FIELDS:
        if isinstance(found.get(name), str) and found[name].strip():
            return _telling_line(found[name])
    return NOTHING_TO_TELL  # JSON that says nothing we know is not for people


def _from_text(error: str) -> str:
    """JSON, or Python's idea of it, somewhere in the middle of a text."""
    match = _FIELD.search(error[:100_000])
    return match[2].replace("\\n", " ") if match else ""


def _telling_line(error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    if any(line.startswith("Traceback (") for line in lines):
        lines.reverse()  # a traceback ends with what went wrong
    return next((line for line in lines if not _TRACE_LINE.match(line)), "")


def _clean(text: str) -> str:
    text = _EXCEPTION.sub("", text.strip())
    for inside in (_URL, _PATH, _SECRET):
        text = inside.sub("…", text)
    text = _SPACES.sub(" ", text).strip()
    if not re.search(r"[^\W\d_]{2}", text):  # no word is left
        return ""
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"
