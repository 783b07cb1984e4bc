"""The provider when ComfyUI is stuck, killed, silent or slow to answer, on real processes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.comfyui_watch import LOOK_ANSWER_SECONDS, LOOK_SECONDS
from gpu_worker.provider import Stopped, Unwell
from scripts.comfyui_stand_in.process import comfyui
from tests.gpu_worker.comfyui_runs import (
    SECONDS,
    empty_image,
    hanging,
    runner,
    slow_image,
)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Any]:
    """A server that the test may break."""
    with comfyui(tmp_path / "comfyui") as server:
        yield server


def test_a_stuck_node_is_given_up_and_the_next_check_wants_to_see_a_prompt_run(
    own: Any, tmp_path: Path
) -> None:
    with runner(own.url, tmp_path / "work", stall_seconds=0.6, canary_seconds=0.5) as runs:
        with pytest.raises(Unwell, match="no progress"):
            runs.run(hanging())
        with pytest.raises(Unwell, match="still runs"):
            runs.provider.check()
        own.restart()
        runs.provider.check()
        assert not runs.provider.suspicious
        before = len(runs.posted())
        runs.provider.check()
        assert len(runs.posted()) == before  # a healthy one is asked for its stats only


def test_a_node_that_can_not_be_stopped_is_left_within_seconds(own: Any, tmp_path: Path) -> None:
    with runner(own.url, tmp_path / "work") as runs, runs.running(hanging()) as future:
        runs.stop.set()
        with pytest.raises(Stopped):
            future.result(SECONDS)
        assert runs.provider.suspicious


def kept(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / "prompts-self_hosted.json").read_text())
    return found


def test_a_prompt_that_would_not_end_is_known_to_the_process_that_comes_after(
    own: Any, tmp_path: Path
) -> None:
    with runner(own.url, tmp_path / "work") as runs:
        runs.provider.take_over(tmp_path)
        with runs.running(hanging()) as future:
            runs.stop.set()
            with pytest.raises(Stopped):
                future.result(SECONDS)
        assert kept(tmp_path) == runs.queue("queue_running")
    with runner(own.url, tmp_path / "work") as later:
        later.provider.take_over(tmp_path)
        with pytest.raises(Unwell, match="still runs"):
            later.provider.check()
        own.restart()
        later.provider.check()
        assert kept(tmp_path) == []


def test_a_prompt_is_known_from_before_it_runs_until_it_has_ended(own: Any, tmp_path: Path) -> None:
    with runner(own.url, tmp_path / "work") as runs:
        runs.provider.take_over(tmp_path)
        with runs.running(slow_image(SECONDS)) as future:
            assert kept(tmp_path) == runs.queue("queue_running")  # what a crash would leave
            runs.provider.check()  # ends nothing that somebody follows
            assert not future.done()
            runs.stop.set()
            with pytest.raises(Stopped):
                future.result(SECONDS)
        assert kept(tmp_path) == []
        runs.run(empty_image())
        assert kept(tmp_path) == []


@pytest.mark.parametrize("content", ["", "{", "{}", '[""]', "[1, null]"])
def test_notes_that_make_no_sense_stop_nothing(own: Any, tmp_path: Path, content: str) -> None:
    (tmp_path / "prompts-self_hosted.json").write_text(content)
    with runner(own.url, tmp_path / "work") as runs:
        runs.provider.take_over(tmp_path)
        runs.provider.check()
        assert runs.run(empty_image())


def test_a_killed_comfyui_is_noticed_at_once(own: Any, tmp_path: Path) -> None:
    with runner(own.url, tmp_path / "work") as runs:
        with runs.running(slow_image(SECONDS)) as future:
            own.kill()
            with pytest.raises(Unwell, match="not reachable"):
                future.result(SECONDS)
            runs.stop.set()
        with pytest.raises(Unwell):
            runs.provider.check()
        with pytest.raises(Unwell):
            runs.run(empty_image())


def test_a_comfyui_that_is_silent_is_unwell(own: Any, tmp_path: Path) -> None:
    with runner(own.url, tmp_path / "work", stall_seconds=1.0) as runs:
        with runs.running(slow_image(SECONDS)) as future:
            own.stop_answering()
            with pytest.raises(Unwell):
                future.result(SECONDS)
        with pytest.raises(Unwell):
            runs.provider.check()
        own.go_on()
        runs.provider.check()  # and what was left running is ended by now
        assert runs.is_idle()


def test_a_comfyui_that_pauses_for_a_while_is_waited_for(own: Any, tmp_path: Path) -> None:
    with runner(own.url, tmp_path / "work") as runs, runs.running(slow_image(0.5)) as future:
        own.stop_answering()
        time.sleep(LOOK_SECONDS + LOOK_ANSWER_SECONDS + 0.5)  # one look went unanswered
        assert not future.done()
        own.go_on()
        assert future.result(SECONDS)


def test_more_memory_than_the_machine_has_may_be_had_elsewhere(own: Any, tmp_path: Path) -> None:
    graph = empty_image()
    graph["1"]["inputs"] |= {"width": 16384, "height": 16384, "batch_size": 4096}
    with runner(own.url, tmp_path / "work") as runs:
        with pytest.raises(Unwell, match=r"out_of_memory: EmptyImage"):
            runs.run(graph)
        assert runs.run(empty_image())
