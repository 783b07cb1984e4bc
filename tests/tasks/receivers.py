"""Real HTTP servers on loopback that take webhooks, or behave badly in every way there is."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

from standardwebhooks.webhooks import Webhook

from models import webhooks
from models.messages import Event
from models.settings import Settings
from models.webhooks import WebhookDelivery, WebhookEndpoint
from tasks.backend import Backend
from tests.fixtures import Person

#: What a test that sends to loopback changes.
ON_LOOPBACK: dict[str, Any] = {
    "webhook_http": "on",
    "webhook_allowed_networks": "127.0.0.0/8 ::1/128",
    "webhook_connect_seconds": 1,
    "webhook_answer_seconds": 1,
}


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def message_id(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str) -> Any:
        """What the judge reads from it: the reference library of Standard Webhooks."""
        return Webhook(secret).verify(self.body, self.headers)


@dataclass
class Receiver:
    """`answer` is what it says to each request; change it in the middle if you like."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None
    most_at_once: int = 0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def ids(self) -> list[str]:
        return [one.message_id for one in self.received]

    def take(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        sent = {name.lower(): value for name, value in request.headers.items()}
        with self._lock:
            self.received.append(Received(request.path, sent, body))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            self.before()
        finally:
            with self._lock:
                self._now -= 1
        request.send_response(self.status)
        for name, value in self.headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", "2")
        request.end_headers()
        request.wfile.write(b"ok")


@contextmanager
def receiver(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    made = Receiver()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with suppress(ConnectionError):
                made.take(self)

        def do_GET(self) -> None:
            made.received.append(Received(self.path, {}, b""))
            self.send_error(418)

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, *_: Any) -> None: ...

    with Server((host, 0), Answers) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        named = f"[{host}]" if ":" in host else host
        made.url = f"http{'s' if tls else ''}://{named}:{server.server_address[1]}/hook"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Rude:
    url: str
    connections: int = 0


@contextmanager
def rude(talk: Callable[[socket.socket], None]) -> Iterator[Rude]:
    """A server that speaks no HTTP by itself: `talk` has each connection to do with as it likes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = Rude(f"http://127.0.0.1:{server.getsockname()[1]}/hook")
        ended = threading.Event()

        def one(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                talk(connection)

        def serve() -> None:
            while not ended.is_set():
                with suppress(OSError):
                    connection, _ = server.accept()
                    made.connections += 1
                    threading.Thread(target=one, args=(connection,), daemon=True).start()

        server.settimeout(0.1)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield made
        finally:
            ended.set()
            thread.join()


def drip(piece: bytes, *, first: bytes = b"") -> Callable[[socket.socket], None]:
    """One piece after the other, for as long as anybody listens: no single wait is long."""

    def talk(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(first)
        while True:
            connection.sendall(piece)
            time.sleep(0.05)

    return talk


def nowhere() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/"


def for_loopback(settings: Settings, **changed: Any) -> Settings:
    return replace(settings, **(ON_LOOPBACK | changed))


@contextmanager
def sending(backend: Backend, **changed: Any) -> Iterator[Backend]:
    """Another process on the same databases, which may send to loopback."""
    other = Backend.open(for_loopback(backend.settings, **changed))
    try:
        yield other
    finally:
        other.close()


def endpoint(
    backend: Backend, person: Person, url: str, events: list[str] | None = None
) -> WebhookEndpoint:
    with backend.databases.central() as session:
        return webhooks.create(
            session,
            tenant_id=person.tenant_id,
            url=url,
            events=events or [str(event) for event in Event],
            most=1000,
        )


def stored(backend: Backend, endpoint: WebhookEndpoint) -> WebhookEndpoint:
    with backend.databases.central(read_only=True) as session:
        return session.get_one(WebhookEndpoint, endpoint.id)


def deliveries_of(backend: Backend, endpoint_id: UUID | None = None) -> list[WebhookDelivery]:
    with backend.databases.central(read_only=True) as session:
        found = session.query(WebhookDelivery).order_by(WebhookDelivery.created_at)
        if endpoint_id:
            found = found.filter_by(endpoint_id=endpoint_id)
        return list(found)
