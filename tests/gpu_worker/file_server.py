"""A real HTTP server whose files, and whose bad manners, a test decides."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True  # or each small answer would wait for a delayed ACK
    server: "Server"

    def do_GET(self) -> None:
        self._reply()

    def do_PUT(self) -> None:
        self._reply()

    def do_POST(self) -> None:
        self._reply()

    def _reply(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        path = self.path.split("?")[0]
        with self.server.files.lock:
            self.server.files.asked.append(path)
            replies = self.server.files.replies.get(path, [])
            reply = replies[0] if len(replies) == 1 else replies.pop(0) if replies else status(404)
        reply(self)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    files: "FileServer"

    def handle_error(self, *_: Any) -> None:
        """A client that went away is part of the story."""


@dataclass
class FileServer:
    port: int
    replies: dict[str, list[Reply]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)  # lets silent replies go

    def put(self, path: str, *replies: Reply) -> str:
        """Answer with these in turn, the last one for ever; returns the address."""
        self.replies[path] = list(replies)
        return f"http://127.0.0.1:{self.port}{path}?X-Signature=very-secret"

    def silent(self, *, announced: int, first: bytes) -> Reply:
        """Send some bytes and then nothing, until the test is over."""

        def reply(request: Request) -> None:
            request.send_response(200)
            request.send_header("Content-Length", str(announced))
            request.end_headers()
            request.wfile.write(first)
            self.released.wait(30)
            request.close_connection = True

        return reply

    def mute(self) -> Reply:
        """Not even a header."""

        def reply(request: Request) -> None:
            self.released.wait(30)
            request.close_connection = True

        return reply


def whole(content: bytes, *, code: int = 200) -> Reply:
    def reply(request: Request) -> None:
        request.send_response(code)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    return reply


def status(code: int) -> Reply:
    return whole(b"", code=code)


def cut_short(content: bytes, *, announced: int) -> Reply:
    """Promise more than is sent, and hang up."""

    def reply(request: Request) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(announced))
        request.end_headers()
        request.wfile.write(content)
        request.close_connection = True

    return reply


def without_length(content: bytes) -> Reply:
    def reply(request: Request) -> None:
        request.send_response(200)
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(content)
        request.close_connection = True

    return reply


@contextmanager
def file_server(port: int = 0) -> Iterator[FileServer]:
    with Server(("127.0.0.1", port), Request) as server:
        server.files = FileServer(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.files
        finally:
            server.files.released.set()
            server.shutdown()
            thread.join()
