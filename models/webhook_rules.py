"""Where webhooks may be sent, and when again: what the settings say, read once.

The text of an address is looked at when somebody names it. That proves little, because a name
leads wherever its owner wants: whoever connects asks `permits` about the address it really
connects to.
"""

import re
import socket
from dataclasses import dataclass
from ipaddress import ip_network
from urllib.parse import SplitResult, urlsplit

from models import public_addresses
from models.errors import InvalidInput
from models.public_addresses import Network
from models.settings import BadSetting, Settings

_VISIBLE = re.compile(r"[!-~]+")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?")
_WELL_KNOWN = 1024  # mail and the like lies below; HTTP does not, but for its own two


@dataclass(frozen=True)
class Target:
    """An address in its parts, so that nobody reads it twice and differently."""

    is_tls: bool
    host: str
    port: int
    path: str  # with the query


@dataclass(frozen=True)
class WebhookRules:
    longest_url: int
    allows_http: bool
    allowed: tuple[Network, ...]
    pauses: tuple[int, ...]

    @classmethod
    def from_settings(cls, settings: Settings) -> "WebhookRules":
        return cls(
            longest_url=settings.webhook_max_url_length,
            allows_http=settings.webhook_http == "on",
            allowed=_networks(settings.webhook_allowed_networks),
            pauses=_pauses(settings.webhook_retry_seconds),
        )

    def target(self, url: str) -> Target:
        """The parts of an address that webhooks may be sent to, as far as its text can tell."""
        if len(url) > self.longest_url:
            raise _wrong(f"At most {self.longest_url} characters.")
        if not _VISIBLE.fullmatch(url) or "\\" in url:
            raise _wrong("Only visible ASCII characters, percent-encoded where needed.")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise _wrong("This is no address.") from None
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise _wrong("Begin with https:// and a name.")
        if parts.scheme == "http" and not self.allows_http:
            raise _wrong("Only https://: what is sent should stay between the two of us.")
        if "[" in parts.netloc and ":" not in parts.hostname:
            raise _wrong("This is no address.")
        if "@" in parts.netloc or "#" in url:
            raise _wrong("Without user, password and fragment.")
        return self._checked(parts, parts.hostname, port)

    def _checked(self, parts: SplitResult, host: str, port: int | None) -> Target:
        is_tls = parts.scheme == "https"
        port = (443 if is_tls else 80) if port is None else port
        if port < _WELL_KNOWN and port not in (80, 443):
            raise _wrong("The port has to be 443, 80, or 1024 and above.")
        literal = _literal(host)
        if literal is not None and not self.permits(literal):
            raise _wrong("This address is not a public one.")
        if literal is None and not (_NAME.fullmatch(host) and len(host) <= 253):
            raise _wrong("The name has letters that names can't have (use its punycode form).")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(is_tls, host.rstrip("."), port, path)

    def permits(self, address: str) -> bool:
        """Whether an address, as a socket calls it, is public or allowed on purpose."""
        found = public_addresses.parse(address)
        return public_addresses.is_public(found) or any(found in one for one in self.allowed)


def _wrong(sentence: str) -> InvalidInput:
    return InvalidInput.field("url", sentence)


def _literal(host: str) -> str | None:
    """The address that a host spells out, also in the old ways: 2130706433, 0x7f.1, 010.0.0.1."""
    if ":" in host:
        try:
            return str(public_addresses.parse(host))
        except ValueError:
            raise _wrong("This is no address.") from None
    if not re.fullmatch(r"[0-9a-fx.]+", host):
        return None
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return None  # a name like cafe.ee


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(word) for word in text.split())
    except ValueError as error:
        raise BadSetting(f"COMFYFLEET_WEBHOOK_ALLOWED_NETWORKS: {error}.") from None


def _pauses(text: str) -> tuple[int, ...]:
    try:
        pauses = tuple(int(word) for word in text.split())
    except ValueError:
        pauses = (0,)
    if any(pause < 1 for pause in pauses):
        raise BadSetting(
            f"COMFYFLEET_WEBHOOK_RETRY_SECONDS is {text!r}; it takes seconds, separated by spaces."
        )
    return pauses
