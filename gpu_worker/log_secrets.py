"""What never leaves in a log line: whatever opens a door to whoever reads it.

Told by its form (the query of an address, a bearer token, `password=`), or known by heart:
the secrets that this process was started with.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

_MASK = "***"
_REVEALING = (
    r"[\w-]{0,40}(?:secrets?|secret[\w-]{0,10}[_-]key|password|passwd|signature|credential|token"
    r"|api[_-]?key|authorization)"
)
_NAMED = re.compile(rf"(?:[\w-]+\.)*{_REVEALING}", re.IGNORECASE)
_SECRET = re.compile(
    # The query of an address: that is where signatures are.
    r"(?P<query>(?<=[\w/%.~-])\?[\w.~%+-]+=[^\s\"'<>\\)\]}]*)"
    # The password of redis://user:password@host.
    r"|(?<=://)(?P<user>[^\s/:@\"']*):[^\s/@\"']+(?=@)"
    r"|(?P<scheme>\bbearer\s+)[\w.~+/=-]{8,}"
    rf"|(?P<name>\b{_REVEALING}(?:[\"']?\s*[:=]|[\"'],)\s*[\"']?)"
    r"(?!\s|bearer\b)[^\s\"',;&)\]}]+"
    r"|(?P<kind>\bwhsec_|\$argon2)[^\s\"')\]}]+",
    re.IGNORECASE,
)
_PLAIN, _SEVERAL = (bool, int, float), (list, tuple, set, frozenset)
#: Without one of these there is nothing to find; most lines have none.
_HINT = re.compile(r"[=:]|',|bearer|whsec_|\$argon2", re.IGNORECASE)
_kept: set[str] = set()
_kept_pattern: re.Pattern[str] | None = None


def keep_secret(*values: str) -> None:
    """These texts, and the passwords of these addresses, never leave in a line."""
    global _kept_pattern
    for value in values:
        secret = _password_in(value) if "://" in value else value
        if len(secret) >= 8:  # shorter ones would black out ordinary words
            _kept.update((secret, unquote(secret)))
    if _kept:
        longest_first = sorted(_kept, key=len, reverse=True)
        _kept_pattern = re.compile("|".join(map(re.escape, longest_first)))


def _password_in(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:  # no address after all; whoever needs one will say so
        return ""


def scrub(text: str) -> str:
    """The text without what opens a door to somebody."""
    if _kept_pattern is not None:
        text = _kept_pattern.sub(_MASK, text)
    return _SECRET.sub(_masked, text) if _HINT.search(text) else text


def _masked(found: re.Match[str]) -> str:
    if found["query"]:
        return f"?{_MASK}"
    if found["user"] is not None:
        return f"{found['user']}:{_MASK}"
    return f"{found['scheme'] or found['name'] or found['kind']}{_MASK}"


def scrubbed(value: Any) -> Any:
    """The same for what is in fields, by their names too. Makes JSON of it on the way."""
    if isinstance(value, str):
        return scrub(value)
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {
            str(name): _MASK if _is_revealing(str(name)) else scrubbed(member)
            for name, member in value.items()
        }
    if isinstance(value, _SEVERAL):
        return [scrubbed(member) for member in value]
    return scrub(str(value))


@lru_cache(maxsize=1000)
def _is_revealing(name: str) -> bool:
    return _NAMED.fullmatch(name) is not None
