"""Servers that answer one thing: a JSON document, or the version of an old Redis."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def http_server(documents: dict[str, Any]) -> Iterator[str]:
    """Answers these paths with JSON, every other with a page."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = documents.get(self.path)
            body = b"<html>Hello" if found is None else json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server, in_a_thread(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


@contextmanager
def old_redis(version: str) -> Iterator[str]:
    """Speaks as much of Redis's protocol as it takes to tell a version."""
    told = f"# Server\r\nredis_version:{version}\r\n"

    class Answers(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while head := self.rfile.readline():
                words = [self.word() for _ in range(int(head[1:]))]
                is_info = words[0].upper() == b"INFO"
                self.wfile.write(f"${len(told)}\r\n{told}\r\n".encode() if is_info else b"+OK\r\n")

        def word(self) -> bytes:
            length = int(self.rfile.readline()[1:])
            return self.rfile.read(length + 2)[:-2]

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Answers) as server, in_a_thread(server):
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"


@contextmanager
def in_a_thread(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
