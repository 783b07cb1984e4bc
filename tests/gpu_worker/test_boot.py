"""A worker's way from settings to work, and out again, as a process of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.comfyui_stand_in.process import comfyui
from scripts.server_process import free_port
from tests.gpu_worker.backend_replies import dropped, problem
from tests.gpu_worker.backend_stand_in import BackendStandIn, backend_stand_in
from tests.gpu_worker.booted import booted

READY = "gpu@cards.w1 ready."


@pytest.fixture
def webapp() -> Iterator[BackendStandIn]:
    with backend_stand_in() as server:
        yield server


@pytest.fixture(scope="module")
def comfyui_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with comfyui(tmp_path_factory.mktemp("comfyui")) as server:
        yield server.url


def token_file(folder: Path) -> Path:
    return folder / "state" / "w1" / "token"


# What can't work ends at once, with a line that says why


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"backend_url": ""}, "COMFYFLEET_BACKEND_URL is not set"),
        ({"stall_seconds": "soon"}, "COMFYFLEET_STALL_SECONDS is 'soon'; it takes a number"),
        ({"providers": "self_hosted magic"}, "COMFYFLEET_PROVIDERS names 'magic'; known: self_"),
        ({"state_dir": "/dev/null"}, "COMFYFLEET_STATE_DIR: /dev/null/w1/jobs can't be used: Not"),
    ],
)
def test_bad_settings_are_told_in_one_line(
    webapp: BackendStandIn, tmp_path: Path, changed: dict[str, str], line: str
) -> None:
    with booted(webapp, tmp_path, **changed) as worker:
        assert worker.code() == 2
        [said] = worker.said().splitlines()
    assert line in said
    assert webapp.asked == []


def test_instance_metadata_that_does_not_answer_is_told_in_one_line(
    webapp: BackendStandIn, tmp_path: Path
) -> None:
    away = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    with booted(webapp, tmp_path, more=away, worker_id="") as worker:
        assert worker.code() == 2
        [said] = worker.said().splitlines()
    assert "Instance metadata does not answer" in said


def test_a_wrong_secret_is_told_in_one_line(
    webapp: BackendStandIn, tmp_path: Path, comfyui_url: str
) -> None:
    with booted(webapp, tmp_path, comfyui_url=comfyui_url, fleet_secret="guessed") as worker:
        assert worker.code() == 2
        [said] = worker.said().splitlines()
    assert "The webapp refuses this worker. unauthorized: It does not open this fleet." in said
    assert "guessed" not in said
    assert not token_file(tmp_path).exists()


# What may come is waited for


def test_it_waits_for_comfyui_and_for_the_webapp(webapp: BackendStandIn, tmp_path: Path) -> None:
    webapp.script("register", dropped)
    port = free_port()
    with booted(webapp, tmp_path, comfyui_url=f"http://127.0.0.1:{port}") as worker:
        worker.wait_until_it_says("Waiting for ComfyUI: ")
        assert webapp.asked == []
        with comfyui(tmp_path / "comfyui", port=port):
            worker.wait_until_it_says("Waiting for the webapp: ")
            worker.wait_until_it_says("w1 has joined the fleet cards.")
            worker.wait_until_it_says(READY)
            assert worker.terminate() == 0
    assert webapp.names().count("register") == 2


def test_a_name_that_is_taken_may_become_free(
    webapp: BackendStandIn, tmp_path: Path, comfyui_url: str
) -> None:
    webapp.always("register", problem(409, "worker_id_taken", "It was seen just now."))
    with booted(webapp, tmp_path, comfyui_url=comfyui_url) as worker:
        worker.wait_until_it_says("Waiting for the webapp: worker_id_taken: It was seen just now.")
        assert worker.terminate() == 0  # nothing to hand back


def test_a_stop_while_it_waits_is_a_good_end(webapp: BackendStandIn, tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with booted(webapp, tmp_path, comfyui_url=nobody) as worker:
        worker.wait_until_it_says("Waiting for ComfyUI: ")
        assert worker.terminate() == 0
        assert "Traceback" not in worker.said()


# Its token


def test_it_keeps_its_token_to_itself_and_removes_it_when_it_leaves(
    webapp: BackendStandIn, tmp_path: Path, comfyui_url: str
) -> None:
    with booted(webapp, tmp_path, comfyui_url=comfyui_url) as worker:
        worker.wait_until_it_says(READY)
        assert token_file(tmp_path).read_text() == "token-1"
        assert token_file(tmp_path).stat().st_mode & 0o777 == 0o600
        assert "token-1" not in worker.said()
        assert worker.terminate() == 0
    assert webapp.names() == ["register", "deregister"]
    assert webapp.asked[-1].token == "token-1"
    assert not token_file(tmp_path).exists()


def test_after_a_crash_it_shows_its_old_token_and_removes_what_jobs_left(
    webapp: BackendStandIn, tmp_path: Path, comfyui_url: str
) -> None:
    with booted(webapp, tmp_path, comfyui_url=comfyui_url) as worker:
        worker.wait_until_it_says("has joined")
        worker.process.kill()
        worker.process.wait()
    left = tmp_path / "state" / "w1" / "jobs" / "job-of-before"
    left.mkdir()
    (left / "picture").write_bytes(b"half")
    with booted(webapp, tmp_path, comfyui_url=comfyui_url) as worker:
        worker.wait_until_it_says(READY)
        assert not left.exists()
        assert token_file(tmp_path).read_text() == "token-2"
        webapp.always("deregister", problem(503, "dependency_unavailable"))
        assert worker.terminate() == 0
        assert "Left without a word: " in worker.said()
    assert [asked.token for asked in webapp.calls("register")] == ["", "token-1"]
    assert token_file(tmp_path).read_text() == "token-2"  # nobody knows that it has left
