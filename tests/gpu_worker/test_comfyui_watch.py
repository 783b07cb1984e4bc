"""The watch on answers that a working ComfyUI gives only for moments, given for ever."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.provider import Unwell
from tests.gpu_worker.comfyui_runs import Runner, empty_image, runner


class Still(BaseHTTPRequestHandler):
    """Takes every prompt and keeps it waiting, with nothing running. Has no websocket."""

    protocol_version = "HTTP/1.1"
    pending: list[list[Any]] = []
    refuses = False

    def do_GET(self) -> None:
        self.answer({} if "queue" not in self.path else self.queue())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        if self.path == "/prompt":
            self.pending.append([0, body["prompt_id"]])
            self.answer({"prompt_id": body["prompt_id"], "node_errors": {}})
        else:
            gone = body.get("delete", [])
            self.pending[:] = [row for row in self.pending if row[1] not in gone]
            self.answer({})

    def queue(self) -> dict[str, Any]:
        return {"queue_running": [], "queue_pending": self.pending}

    def answer(self, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(403 if self.refuses or "/ws" in self.path else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    monkeypatch.setattr(Still, "pending", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Still)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    with runner(url, tmp_path / "work", queue_stall_seconds=0.3, canary_seconds=0.3) as runs:
        yield runs
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_prompt_that_waits_for_nobody_is_given_up_and_withdrawn(runs: Runner) -> None:
    with pytest.raises(Unwell, match="runs nothing"):
        runs.run(empty_image())
    assert Still.pending == []
    assert runs.provider.suspicious
    with pytest.raises(Unwell):
        runs.provider.check()
    assert Still.pending == []


def test_a_server_that_refuses_everything_is_unwell(
    runs: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Still, "refuses", True)
    with pytest.raises(Unwell, match="403"):
        runs.provider.check()
    with pytest.raises(Unwell, match="403"):
        runs.run(empty_image())
