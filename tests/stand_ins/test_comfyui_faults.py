"""The ComfyUI stand-in on demand: rare events, odd outputs, and the ends a process can have."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from PIL import Image
from websocket import WebSocketBadStatusException, WebSocketConnectionClosedException

from scripts.comfyui_stand_in.process import ComfyUI, comfyui
from scripts.server_process import ServerUnavailable
from tests.stand_ins.comfyui_replay import (
    PATIENCE_SECONDS,
    TINY,
    Replay,
    eventually,
    heard,
    is_end,
)

HANG = {"1": {"class_type": "HangForever", "inputs": {}}}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ComfyUI]:
    """A server of this test alone, to be broken."""
    with comfyui(tmp_path) as server:
        yield server


def is_success(message: dict[str, Any]) -> bool:
    return message.get("type") == "execution_success"


def test_a_lost_interrupt_is_answered_and_does_nothing(replay: Replay) -> None:
    replay.faults(lose_interrupts=1, hold_at_node="1")
    replay.post(TINY, "survivor")
    replay.until_held("1")
    replay.order("/interrupt", {"prompt_id": "survivor"})
    replay.faults(hold_at_node=None)
    eventually(lambda: replay.get("/history/survivor"))
    assert replay.get("/api/jobs/survivor")["status"] == "completed"


def test_success_can_be_told_before_the_history_has_it(replay: Replay) -> None:
    replay.faults(success_before_history_ms=1500)
    socket = replay.socket("/ws?clientId=early")
    replay.post(TINY, "early", client_id="early")
    heard(socket, is_success)
    assert replay.get("/history/early") == {}
    heard(socket, is_end)
    assert replay.get("/history/early")["early"]["status"]["completed"]


def test_sockets_can_be_dropped_and_refused(replay: Replay) -> None:
    socket = replay.socket("/ws?clientId=dropped")
    heard(socket, lambda told: "sid" in told["data"])
    replay.faults(close_sockets=True, refuse_sockets=True)
    with pytest.raises((WebSocketConnectionClosedException, ConnectionError)):
        socket.recv()
    with pytest.raises(WebSocketBadStatusException):
        replay.socket("/ws?clientId=dropped")
    replay.faults(refuse_sockets=False)
    heard(replay.socket("/api/ws?clientId=dropped"), lambda told: "sid" in told["data"])


def test_prompts_can_be_made_to_fail_and_all_are_remembered(replay: Replay) -> None:
    began = time.time()
    earlier = len(replay.get("/stand-in/prompts"))
    replay.faults(fail_prompts=2, prompt_status=503)
    answers = [
        requests.post(
            replay.url("/prompt"),
            json={"prompt": TINY, "prompt_id": f"try-{number}", "client_id": "c"},
            timeout=PATIENCE_SECONDS,
        ).status_code
        for number in (1, 2, 3)
    ]
    posted = replay.get("/stand-in/prompts")[earlier:]
    assert answers == [one["status"] for one in posted] == [503, 503, 200]
    assert [one["prompt_id"] for one in posted] == ["try-1", "try-2", "try-3"]
    assert posted[2]["prompt"] == TINY
    assert began <= posted[0]["received_at"] <= posted[2]["received_at"] <= time.time()


def test_a_fault_that_does_not_exist_is_refused(replay: Replay) -> None:
    answer = requests.post(
        replay.url("/stand-in/faults"), json={"lose_all": 1}, timeout=PATIENCE_SECONDS
    )
    assert answer.status_code == 400
    assert answer.json() == {"error": "There is no fault called lose_all."}


def test_outputs_of_any_kind_can_be_had(replay: Replay) -> None:
    ui = {
        "gifs": [{"filename": "a.png", "subfolder": "s", "type": "output"}, "no dict", 5, None],
        "files": [{"filename": "b.glb", "subfolder": "", "type": "temp"}],
        "text": ["said"],
        "videos": [{"filename": "../../evil.mp4", "subfolder": "", "type": "output"}],
        "odd": {"not": "a list"},
    }
    graph = {"1": {"class_type": "EmitOutputs", "inputs": {"ui": json.dumps(ui)}}}
    assert replay.run(graph, "odd")["outputs"] == {"1": ui}
    folder = replay.server.folder
    with Image.open(folder / "output" / "s" / "a.png") as image:
        assert image.size == (8, 8)
    assert (folder / "temp" / "b.glb").stat().st_size > 0
    assert not list(folder.parent.rglob("evil.mp4"))


def test_the_same_id_and_number_twice_in_the_queue_is_a_500(replay: Replay) -> None:
    replay.faults(hold_at_node="1")
    replay.post(TINY, "first")
    replay.until_held("1")
    replay.post(TINY, "twin", number=7)
    body = {"prompt": TINY, "prompt_id": "twin", "number": 7}
    answer = requests.post(replay.url("/prompt"), json=body, timeout=PATIENCE_SECONDS)
    assert answer.status_code == 500


def test_an_idle_interrupt_does_not_hit_the_next_prompt(replay: Replay) -> None:
    replay.order("/interrupt", {})
    assert replay.run(TINY, "next")["status"]["status_str"] == "success"


@pytest.mark.parametrize("path", ["/prompt", "/queue", "/history", "/system_stats", "/features"])
def test_every_route_has_a_second_name(replay: Replay, path: str) -> None:
    assert replay.status_of(path) == replay.status_of(f"/api{path}") == 200


def test_a_hanging_node_ends_with_the_process_and_a_restart_forgets(mortal: ComfyUI) -> None:
    replay = Replay(mortal)
    replay.run(TINY, "before")
    replay.post(HANG, "hangs")
    replay.until_running("hangs")
    replay.order("/interrupt", {"prompt_id": "hangs"})
    replay.post(TINY, "waits")
    assert replay.get("/api/jobs/waits")["status"] == "pending"
    port = mortal.port
    mortal.restart()
    assert mortal.port == port
    assert replay.get("/queue") == {"queue_running": [], "queue_pending": []}
    assert replay.get("/history") == {}
    assert replay.run(TINY, "after")["outputs"]["2"]["images"][0]["filename"] == "tiny_00002_.png"


def test_a_killed_server_is_gone_until_it_is_started_again(mortal: ComfyUI) -> None:
    replay = Replay(mortal)
    mortal.kill()
    eventually(lambda: replay.status_of("/queue") is None)
    mortal.restart()
    assert replay.status_of("/queue") == 200


def test_a_server_that_was_stopped_answers_again_later(mortal: ComfyUI) -> None:
    mortal.stop_answering()
    with pytest.raises(requests.ReadTimeout):
        requests.get(f"{mortal.url}/queue", timeout=0.3)
    mortal.go_on()
    assert Replay(mortal).status_of("/queue") == 200


def test_a_taken_port_is_told(mortal: ComfyUI, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerUnavailable, match=r"(?is)ComfyUI stand-in ended.*already in use"),
        comfyui(tmp_path / "other", port=mortal.port),
    ):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_leaves_at_once_with_code_0_even_in_the_middle_of_a_prompt(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "scripts.comfyui_stand_in", "--port", "0"]
    with subprocess.Popen(
        [*command, "--folder", tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            url = process.stdout.readline().removeprefix("ComfyUI stand-in on ").strip()
            answer = requests.post(f"{url}/prompt", json={"prompt": HANG}, timeout=PATIENCE_SECONDS)
            assert answer.status_code == 200
            os.kill(process.pid, number)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
