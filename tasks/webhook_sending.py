"""One POST to a receiver that nobody trusts: where it leads, how long it takes, what it answers.

A name is resolved once, every address behind it is looked at, and the connection goes to one of
these very addresses: where the name leads a moment later does not matter. Nothing is followed,
no proxy is asked, and whatever the receiver does ends when its time is up.
"""

import base64
import hashlib
import hmac
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse
from threading import Event, Timer
from typing import Any

from models.base import utcnow
from models.delivery_claims import Claim, Tried
from models.errors import InvalidInput
from models.webhook_rules import Target, WebhookRules

logger = logging.getLogger(__name__)

MOST_ADDRESSES = 4  # of one name that are tried
MOST_READ = 16 * 1024  # of an answer's body, so that a receiver is not cut short; nobody looks
READ_SECONDS = 1.0


class NotPublic(OSError):
    """The name leads to where nothing may be sent."""


class TimeIsUp(TimeoutError):
    """The receiver took longer than it may, in all."""


@dataclass(frozen=True)
class Patience:
    connect_seconds: float
    total_seconds: float  # for everything


def send(claimed: Claim, rules: WebhookRules, patience: Patience) -> Tried:
    """Never raises, whatever the receiver does."""
    at, began = utcnow(), time.monotonic()
    status, error, wait_seconds = None, None, None
    try:
        target = rules.target(claimed.url)
        body = json.dumps(claimed.payload, separators=(",", ":")).encode()
        answer = _post(target, body, headers(claimed, body, at), rules, patience)
        status = answer.status
        if not 200 <= status < 300:
            redirects = "; redirects are not followed" if 300 <= status < 400 else ""
            error = f"The receiver answered {status}{redirects}."
            wait_seconds = seconds_to_wait(answer.headers.get("Retry-After", ""), now=at)
    except (OSError, HTTPException, UnicodeError, InvalidInput) as failure:
        error = _sentence(failure, patience)
        logger.info("Delivery %s was not taken: %r", claimed.delivery_id, failure)
    milliseconds = round((time.monotonic() - began) * 1000)
    return Tried(at, milliseconds, status=status, error=error, wait_seconds=wait_seconds)


def headers(claimed: Claim, body: bytes, at: datetime) -> dict[str, str]:
    """As Standard Webhooks has them: one signature for each secret that is good now."""
    timestamp = str(int(at.timestamp()))
    content = f"{claimed.message_id}.{timestamp}.".encode() + body
    signatures = [f"v1,{signature(secret, content)}" for secret in claimed.secrets]
    return {
        "Content-Type": "application/json",
        "User-Agent": "comfyfleet",
        "Webhook-Id": claimed.message_id,
        "Webhook-Timestamp": timestamp,
        "Webhook-Signature": " ".join(signatures),
    }


def signature(secret: str, content: bytes) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()


def _post(
    target: Target, body: bytes, sent: dict[str, str], rules: WebhookRules, patience: Patience
) -> HTTPResponse:
    ends = time.monotonic() + patience.total_seconds
    with dial(target, rules, patience) as plain, _ended_at(ends, plain) as is_up:
        plain.settimeout(patience.total_seconds)
        sock = _tls().wrap_socket(plain, server_hostname=target.host) if target.is_tls else plain
        connection = HTTPConnection(target.host, target.port)
        connection.default_port = 443 if target.is_tls else 80  # what the header Host leaves out
        connection.auto_open = 0  # it would connect to wherever the name leads then
        connection.sock = sock
        connection.request("POST", target.path, body, sent)
        answer = connection.getresponse()
        if is_up():
            raise TimeIsUp
        with suppress(OSError, HTTPException):
            sock.settimeout(READ_SECONDS)
            answer.read1(MOST_READ)
        sock.close()
    return answer


def dial(target: Target, rules: WebhookRules, patience: Patience) -> socket.socket:
    """A connection to one of the addresses behind a name, all of which were looked at."""
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = [(family, address) for family, _, _, _, address in found]
    for _, address in addresses:
        require_permitted(address, rules)
    failure = OSError("The name leads nowhere.")
    for family, address in addresses[:MOST_ADDRESSES]:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(patience.connect_seconds / min(len(addresses), MOST_ADDRESSES))
            sock.connect(address)
            require_permitted(sock.getpeername(), rules)  # who it is, not who it should be
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def require_permitted(address: tuple[Any, ...], rules: WebhookRules) -> None:
    if not rules.permits(str(address[0])):
        raise NotPublic(f"{address[0]} is no public address.")


@contextmanager
def _ended_at(ends: float, sock: socket.socket) -> Iterator[Callable[[], bool]]:
    """Break the connection when the time is up, in whatever it hangs. Yields whether it was."""
    guard = sock.dup()  # the same connection: TLS takes the other handle for itself
    is_up = Event()

    def end() -> None:
        is_up.set()
        with suppress(OSError):  # it may be closed already
            guard.shutdown(socket.SHUT_RDWR)

    timer = Timer(max(ends - time.monotonic(), 0), end)
    timer.daemon = True
    timer.start()
    try:
        yield is_up.is_set
    except (OSError, HTTPException) as error:
        if is_up.is_set():
            raise TimeIsUp from error
        raise
    finally:
        timer.cancel()
        timer.join()
        guard.close()


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def seconds_to_wait(retry_after: str, *, now: datetime) -> float | None:
    """What Retry-After says: seconds, or a date."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit() and len(text) < 12:
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max((until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds(), 0.0)


def _sentence(failure: Exception, patience: Patience) -> str:
    """For the endpoint's owner, who shall not learn what our network looks like."""
    match failure:
        case InvalidInput():
            return f"The address can't be used. {failure.detail}"
        case NotPublic():
            return "The name does not lead to a public address."
        case TimeoutError():
            return f"No complete answer within {patience.total_seconds:g} seconds."
        case socket.gaierror() | UnicodeError():
            return "The name can't be resolved."
        case ssl.SSLCertVerificationError():
            return f"The certificate does not hold: {failure.verify_message}."
        case ssl.SSLError():
            return "TLS could not be set up."
        case ConnectionRefusedError():
            return "The connection was refused."
        case HTTPException() if not isinstance(failure, OSError):
            return "What came back is no HTTP."
        case _:
            return "The connection broke."
