"""`comfyfleet demo`: a person sees all of it happen, and hears plainly when it can't."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from scripts.state_folder import StateFolder


def demo(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.cli", "demo", "--state", folder],
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.slow
def test_an_image_and_a_video_go_through_everything(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for told in (
        "The stack is up after",
        "What happened to image-invert",
        "leased by local-1",
        "completed by local-1",
        "JOB_RESERVE       -20  video-invert",
        "640 x 400 pixels, the negative of what was sent",
        "48 frames, each the negative of what was sent, and the sound is kept",
        "Stopped. All of it worked.",
    ):
        assert told in done.stdout
    with Image.open(tmp_path / "outputs/image-invert.png") as image:
        assert image.size == (640, 400)
    state = StateFolder(tmp_path)
    assert not state.ready_file.exists()
    with state.locked():  # nobody is left
        pass


def test_a_folder_in_use_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with StateFolder(tmp_path).locked():
        done = demo(tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"A stack runs in {tmp_path} already. Stop it, or choose --state."
    )


def test_a_stack_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "central.db").write_text("This is no database. " * 100)
    done = demo(tmp_path)
    assert done.returncode == 1
    assert "The stack ended at once. Its log," in done.stderr
    assert "file is not a database" in done.stderr
