"""Everything of a chaos run that can be hurt: a whole system of real processes, and its network.

Two PostgreSQL servers (central, pool) that keep what they promised, Redis, web with two worker
processes, control worker with its beat, three GPU workers with their ComfyUIs, and who listens to
webhooks. A supervisor starts again what ends. GPU workers reach web and Redis by links of their
own, clients and signed addresses by one more.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from models.settings import Settings
from scripts import servers, stack_parts
from scripts.log_lines import LogLines
from scripts.postgres_server import STOP_SIGNAL, cluster
from scripts.server_process import free_port
from scripts.stack import Stack, Wishes, choose_ports
from scripts.stack_seed import prepare
from scripts.state_folder import StateFolder
from scripts.supervisor import Part, Running, StopRequest, Supervisor
from tasks.backend import Backend
from tests.chaos import faults
from tests.chaos.links import HOST, Links

CODE = Path(__file__).parents[2]
WEB_WORKERS = 2
CALL_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 1.0
POSTGRES_STOP_SECONDS = 10.0

#: For the backend and for workers: everything happens sooner than in earnest.
SHORT = {
    "COMFYFLEET_LEASE_SECONDS": "6",
    "COMFYFLEET_HEARTBEAT_SECONDS": "2",
    "COMFYFLEET_RECONCILE_SECONDS": "1",
    "COMFYFLEET_RETRY_SECONDS": "1",
    "COMFYFLEET_WORKER_GONE_SECONDS": "5",
    "COMFYFLEET_SUBMITTING_TIMEOUT_SECONDS": "30",
    "COMFYFLEET_URL_SECONDS": "8",
    "COMFYFLEET_UPLOAD_TIMEOUT_SECONDS": "15",
    "COMFYFLEET_MAX_ATTEMPTS": "2",
    "COMFYFLEET_MAX_ACTIVE_JOBS": "8",
    "COMFYFLEET_CATALOG_SECONDS": "1",
    "COMFYFLEET_QUEUE_STALL_SECONDS": "3",
    "COMFYFLEET_STALL_SECONDS": "6",
    "COMFYFLEET_RATE_LIMITS": " ".join(
        f"{kind}=100000/minute"
        for kind in ("auth", "submit", "upload", "api", "register", "worker")
    ),
    "COMFYFLEET_WEBHOOK_HTTP": "on",
    "COMFYFLEET_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
    "COMFYFLEET_WEBHOOK_POLL_SECONDS": "1",
    "COMFYFLEET_WEBHOOK_CONNECT_SECONDS": "1",
    "COMFYFLEET_WEBHOOK_ANSWER_SECONDS": "3",
    "COMFYFLEET_WEBHOOK_RETRY_SECONDS": " ".join(["1", "2"] * 15),
    "PYTHONPATH": str(CODE),
}


class Interrupted(Exception):
    """Somebody pressed Ctrl-C."""


class Town:
    def __init__(self, folder: Path, stop_request: StopRequest) -> None:
        self.state = StateFolder(folder)
        self._stop_request = stop_request
        self._held = ExitStack()
        self._supervisors: list[Supervisor] = []
        self._urls: dict[str, str] = {}

    def open(self) -> None:
        """Start everything, the databases first: all others need their schema."""
        self._nowhere = self._held.enter_context(open(os.devnull, "w"))  # noqa: SIM115
        self.links = Links()
        self._held.callback(self.links.close)
        self._start([self._postgres(name) for name in faults.POSTGRES])
        self._make_stack()
        settings = Settings.from_env(self.environment)
        self.stack.secrets.update(prepare(settings, self.state))
        self.state.write_environment(self.environment)
        self.backend = Backend.open(settings)
        self._held.callback(self.backend.close)
        self._start(list(self._programs()))

    def close(self) -> None:
        self._held.close()

    def _postgres(self, name: str) -> Part:
        made = self._held.enter_context(cluster(self.state.folder(name), durable=True))
        port = free_port()
        self._urls[name] = made.url(port)
        return Part(
            name=name,
            command=made.command(port),
            environment={"PATH": os.defpath, "LC_ALL": "C"},
            tier=0,
            answers=lambda _: made.answers(port),
            stop_seconds=POSTGRES_STOP_SECONDS,
            stop_signal=STOP_SIGNAL,
            account=made.account,
        )

    def _make_stack(self) -> None:
        wishes = Wishes(
            port=0,
            gpu_workers=len(faults.GPU_WORKERS),
            database_url=self._urls["central"],
            pool_url=self._urls["pool"],
        )
        self.stack = Stack(
            state=self.state,
            wishes=wishes,
            ports=choose_ports(wishes),
            secrets=self.state.secrets(),
        )
        public = self.links.open("clients>web", self.stack.ports.web)
        self.public_url = f"http://{HOST}:{public}"

    @property
    def environment(self) -> dict[str, str]:
        """The settings of the backend."""
        return self.stack.backend_settings() | self._own

    @property
    def _own(self) -> dict[str, str]:
        temporary = str(self.state.folder("tmp"))
        return SHORT | {"COMFYFLEET_PUBLIC_URL": self.public_url, "TMPDIR": temporary}

    def _start(self, parts: list[Part]) -> None:
        log = LogLines(self.state.logs, self._nowhere, names=[part.name for part in parts])
        supervisor = Supervisor(
            parts, log, self._stop_request, longest_pause_seconds=LONGEST_PAUSE_SECONDS
        )
        self._held.callback(supervisor.stop)
        self._supervisors.append(supervisor)
        if not supervisor.start():
            raise Interrupted

    def _programs(self) -> Iterator[Part]:
        stack, numbers = self.stack, range(len(faults.GPU_WORKERS))
        plain = [stack_parts.redis(stack), stack_parts.web(stack, workers=WEB_WORKERS)]
        plain.append(stack_parts.control(stack))
        plain += [stack_parts.comfyui(stack, number) for number in numbers]
        for part in [*plain, self._receiver()]:
            yield replace(part, environment={**part.environment, **self._own})
        for number in numbers:
            part = stack_parts.gpu_worker(stack, number, self.backend.databases)
            environment = {**part.environment, **SHORT, **self._of_worker(part.name)}
            yield replace(part, environment=environment, before_restart=lambda: None)

    def _receiver(self) -> Part:
        port = free_port()
        self.receiver_url = f"http://{HOST}:{port}/"
        return Part(
            name="receiver",
            command=[sys.executable, "-m", "tests.chaos.receiver", str(port), str(self.heard)],
            environment=os.environ,
            tier=1,
            answers=lambda _: stack_parts.http_answers(self.receiver_url),
        )

    @property
    def heard(self) -> Path:
        """What the receiver was told."""
        return self.state.path / "heard.jsonl"

    def _of_worker(self, worker: str) -> dict[str, str]:
        """It reaches web and Redis by links of its own."""
        ports = self.stack.ports
        web = self.links.open(f"{worker}>web", ports.web)
        redis = self.links.open(f"{worker}>redis", ports.redis)
        return {
            "COMFYFLEET_BACKEND_URL": f"http://{HOST}:{web}",
            "COMFYFLEET_REDIS_URL": servers.redis_url(redis, self.stack.secrets["redis_password"]),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "",
            "TMPDIR": str(self.state.folder("tmp")),
        }

    def tick(self) -> None:
        """One look at all parts: what ended is started again."""
        for supervisor in self._supervisors:
            supervisor.restart_what_ended()

    def part(self, name: str) -> Part:
        return self._running(name).part

    def pid(self, name: str) -> int | None:
        """Of the process of this moment; None if it ended and has not been started again."""
        process = self._running(name).process
        return process.pid if process else None

    def starts(self) -> dict[str, int]:
        """How often each part was started."""
        return {one.part.name: one.starts for one in self._all_running()}

    def _running(self, name: str) -> Running:
        return next(one for one in self._all_running() if one.part.name == name)

    def _all_running(self) -> Iterator[Running]:
        for supervisor in self._supervisors:
            yield from supervisor.running

    def redis_client(self) -> Redis:
        once = Retry(NoBackoff(), retries=0)
        return Redis.from_url(
            self.stack.redis_url,
            socket_timeout=CALL_SECONDS,
            socket_connect_timeout=CALL_SECONDS,
            retry=once,
        )

    def beside(self, name: str) -> list[str]:
        """What is lost with a part: whatever else runs on its machine."""
        return [name.replace("gpu", "comfyui")] if name in faults.GPU_WORKERS else []

    def files_of(self, name: str) -> list[Path]:
        """What a machine loses when its disk is replaced."""
        if name == "redis":
            kept = self.state.folder("redis")
            return [path for path in kept.iterdir() if path.name != "redis.conf"]
        return [path for path in [self.state.path / name] if path.exists()]


@contextmanager
def opened(folder: Path, stop_request: StopRequest) -> Iterator[Town]:
    town = Town(folder, stop_request)
    with closing(town):
        town.open()
        yield town
