"""The thirteen things that a client of ComfyUI must handle, each on a running server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.comfyui_socket import Message, opened
from gpu_worker.provider import JobFailed, Stopped, Unwell
from scripts.comfyui_stand_in.process import comfyui
from tests.gpu_worker.comfyui_runs import (
    SECONDS,
    Runner,
    empty_image,
    runner,
    slow_image,
    until,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comfyui")


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[Any]:
    with comfyui(base) as server:
        yield server


@pytest.fixture
def runs(server: Any, tmp_path: Path) -> Iterator[Runner]:
    with runner(server.url, tmp_path / "work") as runs:
        yield runs
        until(runs.is_idle)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Any]:
    """A server that the test may break."""
    with comfyui(tmp_path / "comfyui") as server:
        yield server


def test_item_1_a_run_answered_from_the_cache_has_its_outputs(runs: Runner) -> None:
    graph = empty_image()
    [first] = runs.run(graph)
    first_bytes = first.path.read_bytes()
    [second] = runs.run(graph)
    assert second.path.read_bytes() == first_bytes
    assert all(prompt["client_id"] for prompt in runs.posted()[-2:])


def test_item_2_a_cached_result_that_was_removed_is_made_anew_by_the_next_try(
    runs: Runner, base: Path
) -> None:
    graph = empty_image(prefix="job-2/out")
    runs.run(graph)
    for path in (base / "output/job-2").iterdir():
        path.unlink()

    with pytest.raises(Unwell, match="gone from ComfyUI's output folder"):
        runs.run(graph)

    [again] = runs.run(graph)
    assert again.path.stat().st_size > 0


def test_item_3_partial_acceptance_is_a_failure_and_the_rest_does_not_run(runs: Runner) -> None:
    graph = slow_image(SECONDS, prefix="partial")
    graph["8"] = {"class_type": "LoadImage", "inputs": {"image": "nope.png"}}
    save = {"images": ["8", 0], "filename_prefix": "x"}
    graph["9"] = {"class_type": "SaveImage", "inputs": save}

    with pytest.raises(JobFailed, match="LoadImage") as failed:
        runs.run(graph)

    assert failed.value.code == "invalid_workflow"
    assert runs.is_idle()


def test_item_4_a_prompt_that_somebody_removed_from_the_queue_is_not_waited_for(
    runs: Runner,
) -> None:
    other = runs.post(slow_image(SECONDS))
    until(lambda: other in runs.queue("queue_running"))
    with runs.running(empty_image(), until_in="queue_pending") as future:
        [pending] = runs.queue("queue_pending")
        assert runs.history(pending) == runs.history(other) == runs.history("unknown") == {}
        runs.provider.comfyui.withdraw(pending)
        with pytest.raises(Unwell, match="no longer knows"):
            future.result(SECONDS)
    runs.interrupt(other)


def test_item_5_a_dead_prompt_thread_is_noticed_and_not_trusted_again(
    own: Any, tmp_path: Path
) -> None:
    with runner(
        own.url, tmp_path / "work", stall_seconds=1.0, queue_stall_seconds=0.5, canary_seconds=2.0
    ) as runs:
        runs.post({**empty_image(), "9": {"class_type": "ImageInvert"}})

        with pytest.raises(Unwell, match=r"progress|waiting"):
            runs.run(empty_image())
        assert runs.provider.comfyui.stats(seconds=SECONDS)  # it looks healthy
        with pytest.raises(Unwell, match=r"runs nothing|progress|waiting"):
            runs.provider.check()

        own.restart()
        runs.provider.check()
        assert runs.run(empty_image())


def test_item_5_a_graph_that_kills_the_prompt_thread_is_never_sent(runs: Runner) -> None:
    before = len(runs.posted())
    with pytest.raises(JobFailed, match="no inputs"):
        runs.run({**empty_image(), "9": {"class_type": "ImageInvert"}})
    assert len(runs.posted()) == before


def test_item_6_a_lost_interrupt_is_repeated_until_the_prompt_has_ended(runs: Runner) -> None:
    with runs.running(slow_image(SECONDS)) as future:
        runs.faults(lose_interrupts=3)
        runs.stop.set()
        with pytest.raises(Stopped):
            future.result(SECONDS)
        assert runs.is_idle()
    assert not runs.provider.suspicious


def test_item_6_nobody_elses_prompt_is_interrupted(runs: Runner) -> None:
    other = runs.post(slow_image(1.0))
    until(lambda: other in runs.queue("queue_running"))
    with runs.running(empty_image(), until_in="queue_pending") as future:
        runs.stop.set()
        with pytest.raises(Stopped):
            future.result(SECONDS)
    assert runs.queue("queue_pending") == []
    until(lambda: runs.history(other))
    assert runs.history(other)[other]["status"]["status_str"] == "success"


def test_item_7_a_run_that_somebody_else_interrupted_may_be_tried_again(runs: Runner) -> None:
    with runs.running(slow_image(SECONDS)) as future:
        runs.interrupt(*runs.queue("queue_running"))
        with pytest.raises(Unwell, match="interrupted"):
            future.result(SECONDS)


def test_item_8_the_outputs_of_a_failed_run_are_ignored(runs: Runner) -> None:
    graph = empty_image(prefix="before")
    tiny = {"width": 4, "height": 4, "batch_size": 1, "color": 1}
    graph["4"] = {"class_type": "EmptyImage", "inputs": tiny}
    blur = {"image": ["4", 0], "blur_radius": 31, "sigma": 1.0}
    graph["3"] = {"class_type": "ImageBlur", "inputs": blur}
    graph["5"] = {
        "class_type": "SaveImage",
        "inputs": {"images": ["3", 0], "filename_prefix": "after"},
    }

    with pytest.raises(JobFailed, match=r"ImageBlur failed: .*Padding size") as failed:
        runs.run(graph)

    assert failed.value.code == "execution_failed"
    assert "RuntimeError" in failed.value.trace
    assert [path.name for path in runs.folder.iterdir()] == []  # no output


def test_item_9_success_may_be_told_before_the_history_has_it(runs: Runner) -> None:
    runs.faults(success_before_history_ms=400)
    try:
        assert runs.run(empty_image())
    finally:
        runs.faults(success_before_history_ms=0)


def test_item_10_each_socket_has_an_id_of_its_own_and_a_broken_one_costs_nothing(
    runs: Runner,
) -> None:
    with opened(runs.url) as one, opened(runs.url) as two:
        assert one.is_open
        assert one.client_id != two.client_id
    with runs.running(slow_image(1.0)) as future:
        runs.faults(close_sockets=True)
        assert future.result(SECONDS)
    assert runs.run(empty_image())
    before, after = (prompt["client_id"] for prompt in runs.posted()[-2:])
    assert before != after


def test_item_11_what_is_broadcast_about_other_prompts_is_ignored(runs: Runner) -> None:
    with opened(runs.url) as listener:
        other = runs.post(slow_image(SECONDS))  # without a client id: every socket hears of it
        with runs.running(empty_image(), until_in="queue_pending") as future:
            for _ in range(3):
                until(lambda: is_progress_of(other, listener.receive(seconds=0.1)))
            assert runs.told.shares == []
            runs.interrupt(other)  # told to everybody, too
            assert future.result(SECONDS)


def is_progress_of(prompt_id: str, message: Message | None) -> bool:
    return (
        message is not None
        and message.kind == "progress"
        and message.content["prompt_id"] == prompt_id
    )


def test_item_12_every_run_has_an_id_of_its_own_and_is_sent_once(runs: Runner) -> None:
    graph = empty_image()
    before = len(runs.posted())
    runs.run(graph)
    runs.run(graph)
    first, second = runs.posted()[before:]
    assert first["prompt_id"] != second["prompt_id"]

    runs.faults(fail_prompts=1, prompt_status=500)
    with pytest.raises(Unwell, match="500"):
        runs.run(graph)
    assert len(runs.posted()) == before + 3


def test_item_13_a_prompt_lost_by_a_restart_is_noticed_and_the_next_runs(
    own: Any, tmp_path: Path
) -> None:
    with runner(own.url, tmp_path / "work") as runs:
        with runs.running(slow_image(SECONDS)) as future:
            own.restart()
            with pytest.raises(Unwell):
                future.result(SECONDS)
        assert runs.run(empty_image())
        own.restart()  # connections kept open from before are dead now
        assert runs.run(empty_image())
