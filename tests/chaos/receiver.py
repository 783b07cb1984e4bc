"""Who listens to webhooks: keeps each message in a file before it says thank you.

python -m tests.chaos.receiver PORT FILE
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
LONGEST_BODY = 1 << 20

Json = dict[str, Any]


class Listener(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    file: Path

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if length > LONGEST_BODY:
            self._answer(413)
            return
        body = self.rfile.read(length)
        if len(body) < length:
            return  # the sender died in the middle of it
        headers = {name.lower(): value for name, value in self.headers.items()}
        heard = {"path": self.path, "headers": headers, "body": body.decode()}
        self._keep(json.dumps(heard).encode() + b"\n")
        self._answer(200)

    def _keep(self, line: bytes) -> None:
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def heard(file: Path) -> list[Json]:
    """Every message so far. The last line may be half of one: its listener was killed."""
    if not file.exists():
        return []
    whole, _, _ = file.read_bytes().rpartition(b"\n")
    messages = []
    for line in whole.splitlines():
        try:
            messages.append(json.loads(line))
        except ValueError:
            continue  # a half line, and the next one behind it: that one is sent again
    return messages


def main(port: int, file: Path) -> None:
    Listener.file = file
    ThreadingHTTPServer((HOST, port), Listener).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
