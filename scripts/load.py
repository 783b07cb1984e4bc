"""A light HTTP load generator: keep-alive connections in a closed loop, in one thread.

Both sides of every comparison pay for it alike. It sends ready-made requests and reads no
more of an answer than its status and length, so that it leaves the cores to the servers.
"""

import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Outcome:
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


class Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.sent_at = 0.0

    def send(self, request: bytes) -> None:
        self.received = b""
        self.sent_at = time.perf_counter()
        self.socket.sendall(request)

    def read(self) -> int | None:
        """The status of the answer, once all of it is here."""
        chunk = self.socket.recv(65536)
        if not chunk:
            raise ConnectionError("The server closed the connection.")
        self.received += chunk
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return None
        lower = head.lower()
        start = lower.index(b"content-length:") + 15
        length = int(lower[start:].split(b"\r\n", 1)[0])
        return int(head[9:12]) if len(body) >= length else None


def drive(port: int, requests: Iterator[bytes], *, connections: int, seconds: float) -> Outcome:
    """Send requests for a while; each connection waits for its answer before the next."""
    outcome, selector = Outcome(), selectors.DefaultSelector()
    begin = time.perf_counter()
    for _ in range(connections):
        connection = Connection(port)
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send(next(requests))
    deadline, open_connections = begin + seconds, connections
    while open_connections:
        for key, _ in selector.select(timeout=30):
            connection = key.data
            status = connection.read()
            if status is None:
                continue
            now = time.perf_counter()
            outcome.latencies.append(now - connection.sent_at)
            outcome.statuses[status] = outcome.statuses.get(status, 0) + 1
            if now < deadline:
                connection.send(next(requests))
            else:
                selector.unregister(connection.socket)
                connection.socket.close()
                open_connections -= 1
    outcome.seconds = time.perf_counter() - begin
    return outcome


def post(path: str, body: bytes, *, token: str = "") -> bytes:
    login = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{login}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
