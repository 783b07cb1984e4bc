"""Flower against real workers: it starts, and shows the worker and its jobs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from scripts.server_process import Program, running
from tests.gpu_worker.small_stack import (
    SmallStack,
    dispatch_of,
    order_card,
    stack_of_its_own,
    until,
)
from tests.scripts.running_stack import up
from tests.webapp.calls import Json


@contextmanager
def flower(stack: SmallStack) -> Iterator[str]:
    environment = stack.control_environment() | {"FLOWER_UNAUTHENTICATED_API": "true"}
    program = Program(name="Flower", log=stack.folder / "flower.log", environment=environment)
    command = [sys.executable, "-m", "celery", "-A", "tasks.app", "flower", "--address=127.0.0.1"]

    def answers(port: int, _: int) -> bool:
        try:
            return requests.get(f"http://127.0.0.1:{port}/healthcheck", timeout=2).ok
        except requests.ConnectionError:
            return False

    with running(program, lambda port: [*command, f"--port={port}"], answers) as port:
        yield f"http://127.0.0.1:{port}"


def test_flower_shows_the_worker_and_the_job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        stack_of_its_own(request, tmp_path_factory) as stack,
        stack.worker("w1") as worker,
        flower(stack) as url,
    ):
        ada = stack.customer()
        for page in ("/", "/workers", "/tasks", "/broker"):
            assert requests.get(f"{url}{page}", timeout=10).status_code == 200

        def workers() -> Any:
            return requests.get(f"{url}/api/workers", timeout=10).json()

        until("it knows the worker", lambda: worker.node in workers())
        job = order_card(ada)

        def tasks() -> list[Json]:
            found = requests.get(f"{url}/api/tasks", timeout=10).json().values()
            return [task for task in found if job["id"] in str(task["result"])]

        [task] = until("it knows the job", tasks)
        assert task["state"] == "SUCCESS"
        assert task["worker"] == worker.node
        assert dispatch_of(ada, job) in task["args"]


@pytest.mark.slow
def test_a_stack_on_one_machine_brings_flower(tmp_path: Path) -> None:
    with up(tmp_path / "state", "--port", "0", "--flower") as whole:
        assert requests.get(whole.ready()["flower_url"], timeout=10).status_code == 200
        assert whole.stop() == 0, whole.said()
