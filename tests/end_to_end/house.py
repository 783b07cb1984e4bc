"""A whole stack of real processes that a test may hurt: see the tests beside this file.

The programs, their commands and their environments are those of `comfyfleet up`; only nobody
starts them again when they end, and times are short, so that tests take seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import requests
from redis import Redis

from models.session import Databases
from models.settings import Settings
from scripts import demo_media, stack_parts
from scripts.demo_customer import Customer
from scripts.stack import Ports, Stack, Wishes, choose_ports
from scripts.stack_seed import prepare
from scripts.state_folder import StateFolder
from scripts.supervisor import Part
from tasks import money
from tasks.backend import Backend
from tests.end_to_end import effects
from tests.end_to_end.running_part import RunningPart

WORKERS = 2
CALL_SECONDS = 10
CODE = Path(__file__).parents[2]
CALLS = ("auth", "submit", "upload", "api", "register", "worker")

#: For the backend and for workers: everything happens sooner than in earnest.
SHORT = {
    "COMFYFLEET_LEASE_SECONDS": "6",
    "COMFYFLEET_HEARTBEAT_SECONDS": "2",
    "COMFYFLEET_RECONCILE_SECONDS": "1",
    "COMFYFLEET_RETRY_SECONDS": "1",
    "COMFYFLEET_MAX_ACTIVE_JOBS": "100",
    "COMFYFLEET_CATALOG_SECONDS": "1",
    "COMFYFLEET_RATE_LIMITS": " ".join(
        f"{kind}=100000/minute"
        for kind in ("auth", "submit", "upload", "api", "register", "worker")
    ),
    "COMFYFLEET_SPOT_POLL_SECONDS": "0.5",
    "COMFYFLEET_QUEUE_STALL_SECONDS": "3",
    "COMFYFLEET_STALL_SECONDS": "6",
    "PYTHONPATH": str(CODE),
}


class House:
    def __init__(self, folder: Path, *, database_url: str, pool_url: str) -> None:
        self.told: dict[str, str] = {}  # more for the environment of what starts from here on
        state = StateFolder(folder)
        wishes = Wishes(port=0, gpu_workers=WORKERS, database_url=database_url, pool_url=pool_url)
        ports: Ports = choose_ports(wishes)
        self.stack = Stack(state=state, wishes=wishes, ports=ports, secrets=state.secrets())
        settings = Settings.from_env(self.stack.backend_settings() | SHORT)
        self.stack.secrets.update(prepare(settings, state))
        self.backend = Backend.open(settings)
        effects.seed(self.backend)
        self._make_parts(self.backend.databases)
        self.customer = Customer(self.stack.api_url)

    def _make_parts(self, databases: Databases) -> None:
        stack = self.stack
        self.redis = self._part(partial(stack_parts.redis, stack))
        self.web = self._part(partial(stack_parts.web, stack))
        self.imds = self._part(partial(stack_parts.imds, stack))
        self.control = self._part(partial(stack_parts.control, stack))
        numbers = range(WORKERS)
        self.comfyuis = [self._part(partial(stack_parts.comfyui, stack, one)) for one in numbers]
        self.workers = [
            self._part(partial(stack_parts.gpu_worker, stack, one, databases)) for one in numbers
        ]

    def _part(self, make: Callable[[], Part]) -> RunningPart:
        def in_short() -> Part:
            part = make()
            return replace(part, environment={**part.environment, **SHORT, **self.told})

        self.stack.state.logs.mkdir(parents=True, exist_ok=True)
        return RunningPart(in_short, self.stack.state.logs)

    @property
    def tiers(self) -> list[list[RunningPart]]:
        """In the order in which they start; those of a tier need nothing of each other."""
        around = [self.web, self.imds, *self.comfyuis, self.control]
        return [[self.redis], around, self.workers]

    @property
    def parts(self) -> list[RunningPart]:
        return [part for tier in self.tiers for part in tier]

    @property
    def databases(self) -> Databases:
        return self.backend.databases

    def open(self) -> None:
        self.make_ready(workers=0)
        stack = self.stack
        user = self.customer.sign_in(
            email=stack.secrets["demo_email"], password=stack.secrets["demo_password"]
        )
        money.credit(
            self.backend,
            user_id=user["id"],
            amount=100_000,
            provider_transaction_id=f"tests:{user['id']}",
            note=None,
            actor="tests",
        )
        picture = stack.state.folder("inputs") / "night.png"
        demo_media.draw_picture(picture)
        self.video_id: str = self.customer.send(picture, "image/png")["id"]

    def make_ready(self, *, workers: int) -> None:
        """Whatever the test before did: all parts run, and so many GPU workers."""
        for extra in self.workers[workers:]:
            extra.stop()
        for tier in self.tiers:
            wanted = [part for part in tier if part not in self.workers[workers:]]
            for part in wanted:
                part.resume()
            started = [part for part in wanted if not part.is_running]
            for part in started:
                part.start(wait=False)
            for part in started:
                part.await_answer()

    def restart_ours(self) -> None:
        """The programs that are ours, but for those that are not needed now."""
        for part in (self.web, self.control, *self.workers):
            if part.is_running or part is not self.workers[-1]:
                part.restart()

    def close(self) -> None:
        for tier in reversed(self.tiers):
            for part in tier:
                part.begin_stop()
            for part in tier:
                part.stop()
        self.backend.close()
        self.customer.__exit__(None, None, None)

    def redis_client(self) -> Redis:
        return Redis.from_url(self.stack.redis_url, socket_timeout=CALL_SECONDS)

    def tell_imds(self, worker: int, kind: str) -> None:
        name = self.stack.worker_names[worker]
        url = f"{self.stack.imds_url}/control/{name}/notices/{kind}"
        requests.put(url, timeout=CALL_SECONDS).raise_for_status()

    def forget_notices(self) -> None:
        for name in self.stack.worker_names:
            stack_parts.forget_notices(self.stack, name)

    def ask_comfyui(self, worker: int, path: str) -> Any:
        url = self.stack.comfyui_url(worker) + path
        return requests.get(url, timeout=CALL_SECONDS).json()

    def is_idle(self, worker: int) -> bool:
        queue = self.ask_comfyui(worker, "/queue")
        return not queue["queue_running"] and not queue["queue_pending"]

    def job_folders(self) -> list[Path]:
        """What jobs left behind in the workers' folders."""
        return list(self.stack.state.path.glob("gpu-*/*/jobs/*"))


@contextmanager
def opened(folder: Path, *, database_url: str, pool_url: str) -> Iterator[House]:
    house = House(folder, database_url=database_url, pool_url=pool_url)
    try:
        house.open()
        yield house
    finally:
        house.close()
    left = {part.name: groups for part in house.parts if (groups := part.left())}
    assert not left, f"Processes were left: {left}"
