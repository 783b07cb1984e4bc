"""What a user is told when a job fails: one sentence, with nothing of the inside in it.

Workers send whatever they have: ComfyUI's JSON, a traceback, a line. The operators keep all
of it; a user gets the part that says what went wrong, without paths, addresses or secrets.
What is looked at is bounded, so a huge error costs no more than a small one.
"""

import json
import re
from typing import Any

NOTHING_TO_TELL = "Processing failed."
LONGEST = 300
LONGEST_FOR_OPERATORS = 20_000

_LOOKED_AT = 100_000  # characters of an error; of the telling line far fewer
_LINE = 2_000
_MEMBERS = 1_000  # of JSON
_FIELDS = ("exception_message", "error_message")
_FIELD = re.compile(
    r"""(?:exception_message|error_message)["']?\s{0,9}[:=]\s{0,9}(["'])((?:\\.|(?!\1).)+)"""
)
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Warning)\b:?\s*")
_TRACE_LINE = re.compile(r"""^\s*(Traceback \(|File "|raise |at \S+ ?\(|\^|~)""")
_INSIDE = (
    re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://\S+", re.I),
    # Absolute, or from the home folder; a space belongs to it if a further folder follows.
    re.compile(r"(?<![\w.])(?:[A-Za-z]:|~)?(?:[\\/]+[\w.@%+-]+(?: [\w.@%+-]+(?=[\\/]))*)+[\\/]*"),
    # Relative: two folders deep, or a file. "and/or" and "image/png" are no paths.
    re.compile(r"[\w.@%+-]+(?:[\\/]+[\w.@%+-]+){2,}[\\/]*"),
    re.compile(r"[\w.@%+-]+[\\/]+[\w@%+-][\w.@%+-]*\.[A-Za-z]\w{0,12}\b"),
    re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"),
    re.compile(
        r"""\b(?:authorization|password|secret|token|api[_-]?key|signature)["']?\s*[:=]\s*"""
        r"""["']?(?:bearer\s+)?[^\s"',;]+""",
        re.I,
    ),
    re.compile(r"\bbearer\s+\S+", re.I),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b|\b[A-Za-z0-9_+/=-]{32,}"),
)
_UNSEEN = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
_ESCAPED = re.compile(r"\\(.)")
_WORD = re.compile(r"[^\W\d_]{2}")


def for_operators(error: str, trace: str | None = None) -> str:
    """All of it, as far as it is kept."""
    return (f"{error}\n{trace}" if trace else error)[:LONGEST_FOR_OPERATORS]


def for_users(error: str) -> str:
    """The telling part of an error, fit for a user's eyes."""
    error = error[:_LOOKED_AT] + "\n" + error[-_LINE:] if len(error) > _LOOKED_AT else error
    told = _from_json(error) or _from_text(error) or _telling_line(error)
    return _clean(told) or NOTHING_TO_TELL


def _from_json(error: str) -> str:
    try:
        found: Any = json.loads(error)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(found, dict | list):
        return ""
    return _telling_line(_field_of(found)) or NOTHING_TO_TELL  # other JSON is not for people


def _field_of(found: Any) -> str:
    """The first field that says something, however deep ComfyUI has put it."""
    members = [found]
    for member in members:
        if isinstance(member, dict):
            for name in _FIELDS:
                if isinstance(member.get(name), str) and member[name].strip():
                    return str(member[name])
            member = [*member.values()]
        if isinstance(member, list):
            members += member[: max(_MEMBERS - len(members), 0)]
    return ""


def _from_text(error: str) -> str:
    """JSON, or Python's idea of it, somewhere in the middle of a text."""
    match = _FIELD.search(error)
    return _telling_line(_ESCAPED.sub(_unescaped, match[2])) if match else ""


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n", "r": "\n", "t": " "}.get(match[1], match[1])


def _telling_line(error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    if any(line.startswith("Traceback (") for line in lines):
        lines.reverse()  # a traceback ends with what went wrong
    return next((line for line in lines if not _TRACE_LINE.match(line[:_LINE])), "")


def _clean(text: str) -> str:
    text = _UNSEEN.sub(" ", text[:_LINE]).strip()
    text = _EXCEPTION.sub("", text)
    for inside in _INSIDE:
        text = inside.sub("…", text)
    if not _WORD.search(text):
        return ""
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"
