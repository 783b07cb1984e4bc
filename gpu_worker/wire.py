"""JSON over HTTP to one server, over a connection that is kept.

A worker asks the webapp and ComfyUI several times for every job, one call after the other.
Going through `requests` costs three times as much as the standard library's client does, which
is a good part of a short job (scripts/bench pipeline). Files still go through `requests`.

Raises TimeoutError when nothing comes in time, and OSError or HTTPException when the
connection breaks. No proxy, no redirect, no second try.
"""

import json
import select
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Answer", "HTTPException", "Wire"]


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    @property
    def is_good(self) -> bool:
        return self.status // 100 == 2

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        return json.loads(self.body)


class _Kept:
    """A connection that is closed when it is dropped, with its thread or its wire."""

    def __init__(self, connection: HTTPConnection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


class Wire:
    """Safe to share between threads: each has a connection of its own."""

    def __init__(self, url: str, *, connect_seconds: float) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._base = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_seconds = connect_seconds
        self._own = threading.local()

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        seconds: float,
    ) -> Answer:
        connection = self._connection(min(self._connect_seconds, seconds))
        sent = {"Content-Type": "application/json", **(headers or {})}
        content = None if body is None else json.dumps(body).encode()
        try:
            connection.sock.settimeout(seconds)
            connection.request(method, self._base + path, content, sent)
            response = connection.getresponse()
            return Answer(response.status, response.read())
        except BaseException:
            connection.close()  # an answer to this must not be taken for one to the next
            raise

    def close(self) -> None:
        """Of the calling thread; those of others go with their threads."""
        self._own.__dict__.clear()

    def _connection(self, seconds: float) -> HTTPConnection:
        kept: _Kept | None = getattr(self._own, "kept", None)
        if kept is not None and (socket := kept.connection.sock) is not None:
            # Something to read before anything was asked: the server has closed it.
            if not select.select([socket], [], [], 0)[0]:
                return kept.connection
            kept.connection.close()
        if self._tls is not None:
            new: HTTPConnection = HTTPSConnection(
                self._host, self._port, timeout=seconds, context=self._tls
            )
        else:
            new = HTTPConnection(self._host, self._port, timeout=seconds)
        self._own.kept = _Kept(new)
        new.connect()
        return new
