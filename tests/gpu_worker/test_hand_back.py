"""A worker that has to go hands its job back first, whatever its ComfyUI does meanwhile."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import requests
from sqlalchemy import select

from models import dispatches
from models.audit import AuditLog
from scripts.comfyui_stand_in.process import ComfyUI, comfyui
from tasks import catalog
from tests.gpu_worker.small_stack import (
    FLEET,
    SmallStack,
    await_status,
    stack_of_its_own,
    until,
)
from tests.webapp.calls import Caller, Json, ordered

END_SECONDS = 20.0


@pytest.fixture(scope="module")
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SmallStack]:
    with stack_of_its_own(request, tmp_path_factory) as stack:
        graph = {"1": {"class_type": "HangForever", "inputs": {}}}
        told: Json = {"slug": FLEET, "name": FLEET, "kind": "image", "output_node_id": "1"}
        catalog.put_workflow(stack.backend, told | {"graph": graph, "properties": []})
        yield stack


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ComfyUI]:
    """A ComfyUI that the test may break."""
    with comfyui(tmp_path / "comfyui") as server:
        yield server


def heard(stack: SmallStack, worker_id: str) -> list[tuple[str, Any]]:
    """What the webapp was told by this worker, in order, with the reasons."""
    with stack.backend.databases.central(read_only=True) as session:
        rows = session.scalars(
            select(AuditLog).where(AuditLog.worker_id == worker_id).order_by(AuditLog.at)
        )
        return [(row.event, row.details.get("reason")) for row in rows]


def attempts(ada: Caller, job: Json) -> int:
    with ada.backend.databases.central(read_only=True) as session:
        found = dispatches.find_by_job(session, ada.person.tenant_id, UUID(job["id"]))
        assert found is not None
        return found.attempts


@pytest.mark.parametrize("stop_seconds", ["3.5", "5"])
@pytest.mark.parametrize("trouble", ["deaf", "silent"])
def test_it_is_handed_back_before_the_worker_leaves(
    stack: SmallStack, own: ComfyUI, trouble: str, stop_seconds: str
) -> None:
    ada, worker_id = stack.customer(), f"{trouble}-{stop_seconds.replace('.', '-')}"
    changed = {"COMFYFLEET_COMFYUI_URL": own.url, "COMFYFLEET_STOP_SECONDS": stop_seconds}
    with stack.worker(worker_id, **changed) as worker:
        job = ordered(ada, FLEET, inputs={})
        await_status(ada, job, "processing")
        until("ComfyUI runs it", lambda: running_at(own))
        if trouble == "silent":
            own.stop_answering()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(END_SECONDS) == 0
    told = heard(stack, worker_id)
    assert told[-2:] == [("job.requeue", "shutdown"), ("worker.deregister", None)]
    assert [event for event, _ in told].count("job.requeue") == 1
    assert attempts(ada, job) == 0
    ada.post(f"/api/ai-jobs/{job['id']}/cancel")


def running_at(comfyui: ComfyUI) -> list[Any]:
    rows: list[Any] = requests.get(f"{comfyui.url}/queue", timeout=5).json()["queue_running"]
    return rows
