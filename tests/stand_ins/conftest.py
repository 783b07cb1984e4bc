"""One ComfyUI stand-in for the tests of a module; each finds it empty."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from scripts.comfyui_stand_in.process import ComfyUI, comfyui
from tests.stand_ins.comfyui_replay import Replay


@pytest.fixture(scope="module")
def comfyui_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyUI]:
    with comfyui(tmp_path_factory.mktemp("comfyui")) as server:
        yield server


@pytest.fixture
def replay(comfyui_process: ComfyUI) -> Iterator[Replay]:
    """With in.png (an image), and garbage.png (none)."""
    for name in ("input", "output", "temp"):
        empty(comfyui_process.folder / name)
    inputs = comfyui_process.folder / "input"
    Image.new("RGB", (96, 64), (10, 60, 200)).save(inputs / "in.png")
    (inputs / "garbage.png").write_bytes(b"this is not an image " * 20)
    replay = Replay(comfyui_process)
    yield replay
    replay.close()
    replay.order("/queue", {"clear": True})
    replay.order("/interrupt", {})
    replay.faults(hold_at_node=None, lose_interrupts=0, success_before_history_ms=0)
    replay.until_idle()
    replay.order("/history", {"clear": True})
    replay.order("/free", {"free_memory": True})


def empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
