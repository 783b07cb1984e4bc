"""What a worker asked, and the ways to answer it: properly, oddly, late or not at all."""

import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

Json = dict[str, Any]
Reply = Callable[["Request"], None]

LATEST_SECONDS = 20.0  # a reply that a test holds back longer than this goes out anyway


@dataclass(frozen=True)
class Asked:
    """One request, as it came."""

    name: str  # "heartbeat", or "PUT /storage/result"
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> Json:
        found: Json = json.loads(self.content)
        return found

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True  # or each small answer would wait for a delayed ACK
    server: Any
    asked: Asked

    def do_POST(self) -> None:
        self._reply(self.path.removeprefix("/api/worker/"))

    def do_PUT(self) -> None:
        self._reply(f"PUT {self.path}")

    def do_GET(self) -> None:
        self._reply(f"GET {self.path}")

    def _reply(self, name: str) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        content = self.rfile.read(int(headers.get("content-length", "0")))
        self.asked = Asked(name, headers, content)
        self.server.stand_in.next_reply(self.asked)(self)

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def says(answer: object, *, status: int = 200) -> Reply:
    return lambda request: request.answer(status, json.dumps(answer).encode())


def problem(status: int, code: str, detail: str = "Told by the test.") -> Reply:
    return says({"code": code, "detail": detail, "status": status}, status=status)


def text(content: str, *, status: int = 200, **headers: str) -> Reply:
    return lambda request: request.answer(status, content.encode(), **headers)


def dropped(request: Request) -> None:
    """Reset the connection, without a word."""
    linger = struct.pack("ii", 1, 0)
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    request.connection.close()
    request.close_connection = True


def cut_short(request: Request) -> None:
    """Promise an answer, begin it, and hang up."""
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b'{"status": "comp')
    request.close_connection = True


def when(event: threading.Event, reply: Reply) -> Reply:
    """Hold the reply back until the test lets it go."""

    def later(request: Request) -> None:
        event.wait(LATEST_SECONDS)
        reply(request)

    return later
