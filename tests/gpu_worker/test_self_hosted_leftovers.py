"""What runs leave in ComfyUI's folders when they, ComfyUI or the worker are cut short."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_worker import graph
from gpu_worker.provider import Unwell
from scripts.comfyui_stand_in.process import comfyui
from tests.gpu_worker.comfyui_runs import SECONDS, Graph, asset, picture, runner, slow_image, until


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Any]:
    """A server that the test may break."""
    with comfyui(tmp_path / "comfyui") as server:
        yield server


def files_in(base: Path) -> list[Path]:
    return [path for part in ("input", "output", "temp") for path in (base / part).rglob("*")]


def saving_early(seconds: float = SECONDS) -> Graph:
    """Has saved something long before it ends."""
    made = slow_image(seconds, prefix="job-job-1-1/late")
    early = {"images": ["1", 0], "filename_prefix": "job-job-1-1/early"}
    return made | {"8": {"class_type": "SaveImage", "inputs": early}}


def test_what_a_killed_comfyui_had_saved_is_removed(own: Any, tmp_path: Path) -> None:
    with runner(own.url, tmp_path / "work", tidy_folder=own.folder) as runs:
        with runs.running(saving_early()) as future:
            until(lambda: files_in(own.folder))
            own.kill()
            with pytest.raises(Unwell, match="not reachable"):
                future.result(SECONDS)
        assert files_in(own.folder) == []


def test_what_a_silent_comfyui_may_still_save_is_removed_once_it_has_ended(
    own: Any, tmp_path: Path
) -> None:
    with runner(own.url, tmp_path / "work", tidy_folder=own.folder, stall_seconds=1.0) as runs:
        with runs.running(saving_early()) as future:
            until(lambda: files_in(own.folder))
            own.stop_answering()
            with pytest.raises(Unwell):
                future.result(SECONDS)
        assert files_in(own.folder)
        own.go_on()
        runs.provider.check()  # wants to see a prompt run, and that one shows a preview
        assert files_in(own.folder) == []


def test_what_a_killed_worker_left_is_removed_by_the_one_that_comes_after(
    own: Any, tmp_path: Path
) -> None:
    notes, found = tmp_path / "notes", tmp_path / "found"
    notes.mkdir()
    with runner(own.url, tmp_path / "work", tidy_folder=own.folder) as runs:
        runs.provider.take_over(notes)
        given = asset(picture(tmp_path / "a.png"), placeholder="asset-1")
        with runs.running(saving_early(), assets=[given]):
            until(lambda: len(files_in(own.folder)) > 2)
            shutil.copytree(notes, found / "notes")  # as a crash at this moment
            shutil.copytree(own.folder, found / "comfyui")
    assert (found / "comfyui/input" / graph.name_for(given)).exists()
    with runner(own.url, tmp_path / "work", tidy_folder=found / "comfyui") as later:
        later.provider.take_over(found / "notes")
        later.provider.check()
    assert files_in(found / "comfyui") == []


def test_a_look_removes_nothing_of_a_run_that_goes_on(own: Any, tmp_path: Path) -> None:
    with runner(own.url, tmp_path / "work", tidy_folder=own.folder) as runs:
        with runs.running(saving_early()) as future:
            until(lambda: files_in(own.folder))
            runs.provider.check()
            assert files_in(own.folder)
            assert not future.done()
        assert files_in(own.folder) == []
