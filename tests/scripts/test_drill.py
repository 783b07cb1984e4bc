"""`comfyfleet spot-drill` on real stacks: it holds, and it says so when something does not."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from scripts import demo_stack
from scripts.state_folder import StateFolder

STEPS = [
    "notice_seen",
    "comfyui_interrupted",
    "job_requeued",
    "worker_gone",
    "replacement_took_it",
    "job_completed",
    "one_charge",
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateFolder]:
    state = StateFolder(tmp_path_factory.mktemp("drill"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMFYFLEET_SPOT_POLL_SECONDS", "1")  # a busy machine is slow enough
        with demo_stack.running(state, options=["--port", "0"]):
            yield state


def drill(state: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "scripts.cli", "spot-drill", "--state", str(state)]
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def document(held: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(held.stdout)
    return found


@pytest.mark.slow
def test_every_step_holds_and_has_its_time(stack: StateFolder) -> None:
    held = drill(stack.path, "--json")

    told = document(held)
    assert (held.returncode, told["ok"]) == (0, True), told
    assert [step["name"] for step in told["steps"]] == STEPS
    assert all(step["seconds"] is not None for step in told["steps"][:-1])
    assert told["worker"] == told["replacement"] == "local-1"  # it was started anew


@pytest.mark.slow
def test_it_is_told_to_people_line_by_line(stack: StateFolder) -> None:
    held = drill(stack.path)

    assert held.returncode == 0, held.stdout
    assert held.stdout.count(" ok ") == len(STEPS)
    assert "local-1, registered anew, took the job" in held.stdout
    assert "one charge: 5 tokens" in held.stdout


@pytest.mark.slow
def test_a_notice_that_nobody_sees_is_a_failure(stack: StateFolder) -> None:
    """Told the wrong address, the drill sends its notice to an instance that does not exist."""
    machines = stack.read_machines()
    assert machines is not None
    lost = machines["local-1"]["notices_url"].replace("local-1", "nobody")
    stack.write_machines({"local-1": machines["local-1"] | {"notices_url": lost}})
    try:
        held = drill(stack.path, "--json")
    finally:
        stack.write_machines(machines)

    told = document(held)
    assert (held.returncode, told["ok"]) == (1, False)
    failed = [step["name"] for step in told["steps"] if not step["ok"]]
    assert failed == STEPS[:5]  # the job itself completed, undisturbed, and was paid for
    assert requests.get(lost, timeout=5).json()["spot"]["seen_at"] is None


@pytest.mark.slow
def test_what_stops_answering_after_the_notice_is_a_failure(stack: StateFolder) -> None:
    """Told of a server that takes the notice, and then says nothing that can be understood."""
    machines = stack.read_machines()
    assert machines is not None
    with silent_after_put() as url:
        stack.write_machines({"local-1": machines["local-1"] | {"notices_url": url}})
        try:
            held = drill(stack.path, "--json")
        finally:
            stack.write_machines(machines)

    told = document(held)
    assert (held.returncode, told["ok"]) == (1, False)
    first, *_, last = told["steps"]
    assert (first["name"], first["ok"]) == ("notice_seen", False)
    assert first["sentence"].startswith("This can't be looked at: ")
    assert (last["name"], last["ok"]) == ("one_charge", True), "the other steps are still taken"


class TakesNotices(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        self.close_connection = True  # without an answer


@contextmanager
def silent_after_put() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), TakesNotices) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/notices"
        finally:
            server.shutdown()


def test_without_a_running_stack_there_is_nothing_to_drill(tmp_path: Path) -> None:
    held = drill(tmp_path)

    assert held.returncode == 2
    assert "No stack runs" in held.stderr
