"""A small stack around real worker processes: webapp, Redis, ComfyUI stand-in.

Two fleets, `cards` and `cards-large`, each with an effect of the same name that needs no
upload and takes as long as it is told. The names begin alike on purpose.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen
from typing import Any
from uuid import UUID

import pytest
from celery import Celery
from flask import Flask

from models import dispatches, fleets, workflows
from models.settings import Settings
from scripts import servers
from scripts.comfyui_stand_in.process import comfyui
from scripts.server_process import Program, free_port
from tasks import catalog
from tasks.backend import Backend
from tests.fixtures import FLEET_SECRET, make_person
from tests.webapp.calls import Caller, Json, answered, ordered
from tests.webapp.conftest import prepared, running, served

CODE = Path(__file__).parents[2]
FLEET, OTHER_FLEET = "cards", "cards-large"
WAIT_SECONDS = 30.0


def until(what: str, fact: Callable[[], Any]) -> Any:
    """What `fact` returns as soon as that is something."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if found := fact():
            return found
        time.sleep(0.02)
    raise AssertionError(f"It did not happen within {WAIT_SECONDS:.0f} s: {what}.")


@dataclass(frozen=True)
class WorkerProcess:
    worker_id: str
    node: str
    program: Program
    process: Popen[bytes]

    def said(self, text: str) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"The worker ended:\n{self.program.log_text()}")
        return text in self.program.log_text()

    @property
    def memory_mb(self) -> float:
        """What it has in memory now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2


@dataclass(frozen=True)
class SmallStack:
    app: Flask
    api_url: str
    redis_url: str
    comfyui_url: str
    folder: Path

    @property
    def backend(self) -> Backend:
        made: Backend = self.app.extensions["comfyfleet"]
        return made

    def customer(self) -> Caller:
        return Caller(self.app, make_person(self.backend, tokens=100))

    def worker_environment(self, worker_id: str, **changed: str) -> dict[str, str]:
        return {
            "COMFYFLEET_BACKEND_URL": self.api_url,
            "COMFYFLEET_REDIS_URL": self.redis_url,
            "COMFYFLEET_FLEET_SLUG": FLEET,
            "COMFYFLEET_FLEET_SECRET": FLEET_SECRET,
            "COMFYFLEET_WORKER_ID": worker_id,
            "COMFYFLEET_COMFYUI_URL": self.comfyui_url,
            "COMFYFLEET_STATE_DIR": str(self.folder),
            "COMFYFLEET_STOP_SECONDS": "3",
            "PYTHONPATH": str(CODE),
        } | changed

    @contextmanager
    def worker(
        self, worker_id: str, command: list[str] | None = None, **changed: str
    ) -> Iterator[WorkerProcess]:
        """A worker that takes tickets; `changed` are variables of its environment."""
        environment = self.worker_environment(worker_id, **changed)
        program = Program(
            name="The worker", log=self.folder / f"{worker_id}.log", environment=environment
        )
        process = program.start(command or [sys.executable, "-m", "gpu_worker"])
        node = f"gpu@{environment['COMFYFLEET_FLEET_SLUG']}.{worker_id}"
        worker = WorkerProcess(worker_id, node, program, process)
        try:
            until("the worker is ready", lambda: worker.said(f"{node} ready."))
            yield worker
        finally:
            program.stop(process)

    def control_environment(self) -> dict[str, str]:
        """For programs of the control plane: `celery -A tasks.app ...`."""
        settings = self.backend.settings
        given = ("central_url", "pool_urls", "redis_url", "storage_url", "secret_key")
        told = {f"COMFYFLEET_{name.upper()}": str(getattr(settings, name)) for name in given}
        return told | {"PYTHONPATH": str(CODE), "PATH": os.defpath}

    def celery(self) -> Celery:
        """As an operator has it. To be closed."""
        return Celery("operator", broker=self.redis_url, set_as_current=False)


def order_card(customer: Caller, *, seconds: float = 0, fleet: str = FLEET) -> Json:
    return ordered(customer, fleet, inputs={"seconds": seconds})


def job_of(customer: Caller, job: Json) -> Json:
    return answered(customer.get(f"/api/ai-jobs/{job['id']}"))


def await_status(customer: Caller, job: Json, status: str) -> Json:
    def reached() -> Json | None:
        now = job_of(customer, job)
        return now if now["status"] == status else None

    found: Json = until(f"the job is {status}", reached)
    return found


def add_fleet(backend: Backend, slug: str) -> None:
    """With a workflow and an effect of the same name."""
    graph = {
        "1": {
            "class_type": "EmptyImage",
            "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 255},
        },
        "2": {"class_type": "SlowImage", "inputs": {"image": ["1", 0], "seconds": "{{seconds}}"}},
        "3": {
            "class_type": "SaveImage",
            "inputs": {"images": ["2", 0], "filename_prefix": "{{output_prefix}}"},
        },
    }
    seconds = {"name": "seconds", "type": "number", "default": 0, "min": 0, "max": 60}
    told = {"slug": slug, "name": slug, "kind": "image", "output_node_id": "3"}
    catalog.put_workflow(backend, told | {"graph": graph, "properties": [seconds]})
    effect = {"slug": slug, "name": slug, "description": "", "workflow": slug}
    catalog.put_effect(backend, effect | {"credits_cost": 1, "overrides": {}})
    with backend.databases.central() as session:
        fleet = fleets.put(session, stage=backend.settings.stage, slug=slug, name=slug)
        fleets.assign(session, fleet, workflow_id=workflows.get(session, slug).id)


@contextmanager
def small_stack(settings: Settings, folder: Path) -> Iterator[SmallStack]:
    """`settings` name databases that are migrated, and the Redis."""
    port = free_port()
    with ExitStack() as held:
        stand_in = held.enter_context(comfyui(folder / "comfyui"))
        public_url = f"http://127.0.0.1:{port}"
        app = held.enter_context(running(replace(settings, public_url=public_url)))
        for slug in (FLEET, OTHER_FLEET):
            add_fleet(app.extensions["comfyfleet"], slug)
        url = held.enter_context(served(app, port))
        yield SmallStack(app, url, settings.redis_url, stand_in.url, folder)


@contextmanager
def stack_of_its_own(
    request: pytest.FixtureRequest, factory: pytest.TempPathFactory
) -> Iterator[SmallStack]:
    """On SQLite and a Redis that nobody else uses."""
    folder = factory.mktemp("stack")
    with servers.redis(folder / "redis") as redis_url:
        settings = prepared(request, factory, redis_url, "sqlite")
        with small_stack(settings, folder) as stack:
            yield stack


def dispatch_of(customer: Caller, job: Json) -> str:
    with customer.backend.databases.central(read_only=True) as session:
        found = dispatches.find_by_job(session, customer.person.tenant_id, UUID(job["id"]))
    assert found is not None
    return str(found.id)
