"""Instance metadata for machines that are none of EC2's: answers as IMDSv2 does.

One server plays many instances, each under an address of its own (/i/NAME/), and each knows
its own notices only. An instance exists as soon as somebody asks for it; its id is its name.
Everything under /control/ is ours: there tests and drills send and withdraw notices.
"""

import json
import re
import signal
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

import click

from scripts.imds_instance import NOTICES, Instance

TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header
TOKEN_TTL = "X-aws-ec2-metadata-token-ttl-seconds"  # noqa: S105
LONGEST_TTL_SECONDS = 21_600
LARGEST_BODY_BYTES = 65_536

INSTANCE_PATH = re.compile(r"/i/(?P<name>[\w.-]+)/(?P<version>latest|[\d-]+)/(?P<path>.*)")
CONTROL_PATH = re.compile(r"/control/(?P<name>[\w.-]+)/(?P<path>.+)")


class Answer(Exception):
    """The status that is answered instead of a value."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class ImdsStandIn:
    """The server, while the `with` block lasts. Every call is safe from any thread."""

    def __init__(self, port: int = 0) -> None:
        self._instances: dict[str, Instance] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), self)
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> "ImdsStandIn":
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, name: str) -> str:
        """What AWS_EC2_METADATA_SERVICE_ENDPOINT has to be for this instance."""
        return f"{self.address}/i/{name}/"

    def set(self, name: str, path: str, value: str | None) -> None:
        """Give a fact, such as tags/instance/FleetSlug; None takes it away."""
        with self._lock:
            facts = self._instance(name).facts
            if value is None:
                facts.pop(path, None)
            else:
                facts[path] = value

    def notify_spot(self, name: str) -> None:
        self.notify(name, "spot")

    def notify_rebalance(self, name: str) -> None:
        self.notify(name, "rebalance")

    def notify_scale_in(self, name: str) -> None:
        self.notify(name, "scale-in")

    def notify(self, name: str, kind: str) -> None:
        with self._lock:
            self._instance(name).notify(kind)

    def clear(self, name: str) -> None:
        """Withdraw every notice: the instance that comes next under this name is a new one."""
        with self._lock:
            self._instance(name).clear()

    def notices(self, name: str) -> dict[str, dict[str, str | None]]:
        with self._lock:
            return {kind: dict(vars(one)) for kind, one in self._instance(name).notices.items()}

    def forget_tokens(self, name: str) -> None:
        """As if their time were over."""
        with self._lock:
            self._instance(name).tokens.clear()

    def token(self, name: str, ttl: str) -> str:
        if not (ttl.isdecimal() and 1 <= int(ttl) <= LONGEST_TTL_SECONDS):
            raise Answer(400)
        with self._lock:
            return self._instance(name).token(int(ttl))

    def read(self, name: str, path: str, token: str) -> str:
        with self._lock:
            instance = self._instance(name)
            if not instance.accepts(token):
                raise Answer(401)
            value = instance.read(path)
        if value is None:
            raise Answer(404)
        return value

    def _instance(self, name: str) -> Instance:
        return self._instances.setdefault(name, Instance.named(name))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], stand_in: ImdsStandIn) -> None:
        self.stand_in = stand_in
        super().__init__(address, _Request)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10  # a caller that says nothing holds no thread for ever

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def _get(self) -> str:
        if control := CONTROL_PATH.fullmatch(self.path):
            if control["path"] != "notices":
                raise Answer(404)
            return json.dumps(self.server.stand_in.notices(control["name"]))
        name, _, path = self._instance_path()
        if not path.startswith("meta-data/"):
            raise Answer(404)
        token = self.headers.get(TOKEN, "")
        return self.server.stand_in.read(name, path.removeprefix("meta-data/"), token)

    def _put(self) -> str:
        body = self._body()
        if control := CONTROL_PATH.fullmatch(self.path):
            return self._put_control(control["name"], control["path"], body)
        name, version, path = self._instance_path()
        if path != "api/token":
            raise Answer(404)
        if version != "latest" or "X-Forwarded-For" in self.headers:
            raise Answer(403)  # a token for a proxy would be a token for strangers
        return self.server.stand_in.token(name, self.headers.get(TOKEN_TTL, ""))

    def _put_control(self, name: str, path: str, body: str) -> str:
        part, _, rest = path.partition("/")
        if part == "notices" and rest in NOTICES:
            self.server.stand_in.notify(name, rest)
        elif part == "facts" and rest:
            self.server.stand_in.set(name, rest, body)
        else:
            raise Answer(404)
        return ""

    def _delete(self) -> str:
        control = CONTROL_PATH.fullmatch(self.path)
        if not control or control["path"] != "notices":
            raise Answer(404)
        self.server.stand_in.clear(control["name"])
        return ""

    def _instance_path(self) -> tuple[str, str, str]:
        found = INSTANCE_PATH.fullmatch(self.path)
        if not found:
            raise Answer(404)
        return found["name"], found["version"], found["path"]

    def _body(self) -> str:
        length = self.headers.get("Content-Length", "0")
        if not (length.isdecimal() and int(length) <= LARGEST_BODY_BYTES):
            raise Answer(400)
        return self.rfile.read(int(length)).decode(errors="replace")

    def _answer(self, work: Callable[[], str]) -> None:
        try:
            status, text = 200, work()
        except Answer as answer:
            status, text = answer.status, ""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Workers ask every few seconds; that is no news."""


@click.command()
@click.option("--port", default=0, help="0 takes a free one.", type=click.IntRange(0, 65535))
def main(port: int) -> None:
    """Play the instance metadata service of EC2 until stopped."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with ImdsStandIn(port) as stand_in:
        click.echo(f"IMDS stand-in on {stand_in.address}")
        sys.stdout.flush()
        stopped.wait()


if __name__ == "__main__":
    main()
