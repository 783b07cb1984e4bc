"""A webapp and a storage in one real HTTP server, as far as a worker sees them.

Unless a test says otherwise it answers as the worker protocol has it: tokens are given and
looked at, leases renewed, reports accepted, files taken. What a test scripts comes first.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from gpu_worker.backend import Backend, Membership
from gpu_worker.lease import Lease
from tests.gpu_worker.backend_replies import Asked, Json, Reply, Request, problem, says

SECRET = "the-secret-of-the-fleet"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    stand_in: "BackendStandIn"

    def handle_error(self, *_: Any) -> None:
        """A client that went away is part of the story."""


@dataclass
class BackendStandIn:
    port: int
    asked: list[Asked] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    stored: dict[str, bytes] = field(default_factory=dict)
    heartbeat: Json = field(default_factory=dict)  # what a heartbeat answers beside the usual
    _scripts: dict[str, list[Reply]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def script(self, name: str, *replies: Reply) -> None:
        """Answer with these in turn; then as usual again."""
        with self._lock:
            self._scripts[name] = list(replies)

    def always(self, name: str, reply: Reply) -> None:
        self.script(name, *[reply] * 1000)

    def calls(self, name: str) -> list[Asked]:
        with self._lock:
            return [asked for asked in self.asked if asked.name == name]

    def names(self) -> list[str]:
        """What was asked, in order."""
        with self._lock:
            return [asked.name for asked in self.asked]

    def next_reply(self, asked: Asked) -> Reply:
        with self._lock:
            self.asked.append(asked)
            scripted = self._scripts.get(asked.name)
            return scripted.pop(0) if scripted else self.usual

    def usual(self, request: Request) -> None:
        asked = request.asked
        method, _, path = asked.name.rpartition(" ")
        if method == "PUT":
            self.stored[path] = asked.content
            return request.answer(200)
        if method == "GET":
            return request.answer(200 if path in self.stored else 404, self.stored.get(path, b""))
        if asked.name == "register":
            return self._register(request)
        if asked.token not in self.tokens:
            return problem(401, "unauthorized", "The token is not known.")(request)
        return self._known(request)

    def _register(self, request: Request) -> None:
        if request.asked.headers.get("x-fleet-secret") != SECRET:
            return problem(401, "unauthorized", "It does not open this fleet.")(request)
        token = f"token-{next(self._numbers)}"
        self.tokens.add(token)
        return says({"token": token, "queue": "cards", "heartbeat_seconds": 30}, status=201)(
            request
        )

    def _known(self, request: Request) -> None:
        asked = request.asked
        if asked.name in ("poll", "deregister"):
            return request.answer(204)
        if asked.name == "heartbeat":
            return says(self._heartbeat(asked.body))(request)
        if asked.name == "fail":
            return says({"status": "queued" if asked.body["retryable"] else "failed"})(request)
        return says({"status": {"complete": "completed", "requeue": "queued"}[asked.name]})(request)

    def _heartbeat(self, told: Json) -> Json:
        usual: Json = {"cancel_requested": False, "draining": False, "next_heartbeat_seconds": 30}
        if told.get("outputs"):
            usual["uploads"] = [self.address(output) for output in told["outputs"]]
        return usual | self.heartbeat

    def address(self, output: Json) -> Json:
        headers = {"Content-Type": output["mime_type"], "X-Size": str(output["size_bytes"])}
        return {
            "name": output["name"],
            "url": f"{self.url}/storage/{output['sha256']}",
            "headers": headers,
        }

    def backend(self, **given: Any) -> Backend:
        """A worker's client that has joined, unless a token is given."""
        made = Backend(self.url, membership(), **given)
        if "token" not in given:
            made.register()
        return made

    def lease(self, **changed: Any) -> Lease:
        return Lease.from_json(self.lease_answer(**changed))

    def lease_answer(self, *, assets: list[Json] | None = None, **changed: Any) -> Json:
        return {
            "dispatch_id": "dispatch-1",
            "lease_token": "lease-1",
            "job_id": "job-1",
            "provider": "small",
            "attempt": 1,
            "deadline_seconds": 60,
            "output_url": f"{self.url}/storage/result",
            "output_headers": {"Content-Type": "image/png", "X-Signed": "yes"},
            "input_payload": {"graph": {"1": {}}, "output_node_id": "1", "assets": assets or []},
        } | changed


def membership(**changed: Any) -> Membership:
    usual: Json = {
        "worker_id": "w1",
        "fleet_slug": "cards",
        "stage": "dev",
        "fleet_secret": SECRET,
        "providers": ["small"],
        "capabilities": {"gpu": "none"},
    }
    return Membership(**usual | changed)


@contextmanager
def backend_stand_in(port: int = 0) -> Iterator[BackendStandIn]:
    with Server(("127.0.0.1", port), Request) as server:
        server.stand_in = BackendStandIn(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.stand_in
        finally:
            server.shutdown()
            thread.join()
