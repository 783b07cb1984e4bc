"""The provider on a running ComfyUI stand-in: what goes in, what comes out, what goes wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from gpu_worker.provider import JobFailed, Stopped, Unwell
from scripts.comfyui_stand_in.process import comfyui
from tests.gpu_worker.comfyui_runs import (
    SECONDS,
    Runner,
    asset,
    emitting,
    empty_image,
    picture,
    runner,
    slow_image,
    until,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with comfyui(tmp_path_factory.mktemp("comfyui")) as server:
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


def inverting() -> dict[str, Any]:
    return {
        "1": {"class_type": "LoadImage", "inputs": {"image": "asset-1"}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {
            "class_type": "SaveImage",
            "inputs": {"images": ["2", 0], "filename_prefix": "job-7/out"},
        },
    }


def test_a_file_goes_in_and_a_file_comes_out(runs: Runner, tmp_path: Path) -> None:
    path = picture(tmp_path / "My cat.png")
    [output] = runs.run(
        inverting(), output_node_id="3", assets=[asset(path, placeholder="asset-1")]
    )
    assert (output.name, output.mime_type) == ("out.png", "image/png")
    assert output.path == runs.folder / "output-0.png"
    assert Image.open(output.path).convert("RGB").getpixel((0, 0)) == (5, 55, 245)
    assert runs.told.shares[-1] == 1.0


def test_the_name_that_comfyui_gave_is_used(runs: Runner, tmp_path: Path) -> None:
    """Two files with one name and other bytes: ComfyUI renames the second."""
    first = asset(picture(tmp_path / "a.png", (1, 2, 3)), placeholder="asset-1")
    second = asset(picture(tmp_path / "b.png", (9, 8, 7)), placeholder="asset-1")
    runs.run(inverting(), assets=[first])
    [output] = runs.run(inverting(), assets=[second])
    assert Image.open(output.path).convert("RGB").getpixel((0, 0)) == (246, 247, 248)


def test_a_file_that_is_no_image_is_named_as_the_user_did(runs: Runner, tmp_path: Path) -> None:
    path = tmp_path / "My cat.png"
    path.write_bytes(b"no image at all")
    with pytest.raises(JobFailed, match=r"My cat\.png") as failed:
        runs.run(inverting(), assets=[asset(path, placeholder="asset-1")])
    assert "/" not in failed.value.message
    assert "Traceback" not in failed.value.message


def test_many_outputs_of_all_kinds_are_kept(runs: Runner) -> None:
    ui = {
        "gifs": [{"filename": "a_00001_.gif", "subfolder": "s", "type": "output"}, 7, None],
        "videos": [{"filename": "b.webm", "type": "output"}],
        "files": [{"filename": "c.xyz"}, {"filename": "b.webm"}],
        "images": [{"filename": "preview.png", "type": "temp"}],
        "text": ["one", "two"],
    }
    made = runs.run(emitting(json.dumps(ui)))
    assert [(file.name, file.mime_type) for file in made] == [
        ("a.gif", "image/gif"),
        ("b.webm", "video/webm"),
        ("c.bin", "application/octet-stream"),
        ("text.txt", "text/plain"),
    ]
    assert made[3].path.read_text() == "one\ntwo"
    assert {file.path.parent for file in made} == {runs.folder}
    assert all(file.path.stat().st_size for file in made)


def test_a_text_that_is_no_unicode_is_kept_as_far_as_it_goes(runs: Runner) -> None:
    [text] = runs.run(emitting(json.dumps({"text": ["ab\ud800c\0"]})))
    assert text.path.read_text() == "ab?c\0"


def test_a_name_that_leads_elsewhere_is_only_a_name(runs: Runner, tmp_path: Path) -> None:
    ui = {"images": [{"filename": "../../evil.png", "subfolder": "", "type": "output"}]}
    with pytest.raises(JobFailed, match="hand out"):
        runs.run(emitting(json.dumps(ui)))
    assert not list(tmp_path.rglob("evil*"))


def test_a_run_without_a_result_fails(runs: Runner) -> None:
    preview = empty_image()
    preview["2"] = {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}
    with pytest.raises(JobFailed, match="without a result") as failed:
        runs.run(preview)
    assert failed.value.code == "no_output"


def test_a_graph_that_comfyui_refuses_is_explained(runs: Runner) -> None:
    graph = empty_image()
    graph["1"]["inputs"]["width"] = 99_999
    with pytest.raises(JobFailed, match=r"EmptyImage \(1\): Value 99999 bigger") as failed:
        runs.run(graph)
    assert failed.value.code == "invalid_workflow"
    assert "value_bigger_than_max" in failed.value.trace

    with pytest.raises(JobFailed, match="NoSuchNode does not exist"):
        runs.run({**empty_image(), "9": {"class_type": "NoSuchNode", "inputs": {}}})


def test_progress_rises_and_names_the_node_at_work(runs: Runner) -> None:
    runs.run(slow_image(1.0))
    assert runs.told.shares == sorted(runs.told.shares)
    assert any(0.4 < share < 0.6 for share in runs.told.shares)
    assert "SlowImage" in runs.told.nodes
    assert runs.told.shares[-1] == 1.0


def test_without_a_websocket_the_history_is_asked(runs: Runner) -> None:
    runs.faults(refuse_sockets=True)
    try:
        assert runs.run(empty_image())
        with runs.running(slow_image(SECONDS)) as future:
            runs.stop.set()
            with pytest.raises(Stopped):
                future.result(SECONDS)
    finally:
        runs.faults(refuse_sockets=False)


def test_a_run_over_its_deadline_fails_and_is_ended(runs: Runner) -> None:
    with pytest.raises(JobFailed, match=r"limit of 0\.5 seconds") as failed:
        runs.run(slow_image(SECONDS), deadline_seconds=0.5)
    assert failed.value.code == "deadline_exceeded"
    assert runs.is_idle()


def test_a_stop_before_the_start_sends_nothing(runs: Runner) -> None:
    before = len(runs.posted())
    runs.stop.set()
    with pytest.raises(Stopped):
        runs.run(empty_image())
    assert len(runs.posted()) == before


def test_an_exception_of_the_caller_leaves_nothing_running(runs: Runner) -> None:
    def fail(_share: float, _node: str | None) -> None:
        raise KeyError("a bug")

    runs.told = fail  # type: ignore[assignment]
    with pytest.raises(KeyError):
        runs.run(slow_image(SECONDS))
    assert runs.is_idle()


def test_a_prompt_that_is_answered_with_500_may_be_tried_again(runs: Runner) -> None:
    runs.faults(fail_prompts=1, prompt_status=500)
    with pytest.raises(Unwell, match="500"):
        runs.run(empty_image())
    assert runs.run(empty_image())


def test_a_file_larger_than_comfyui_takes_is_the_jobs_fault(tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    with path.open("wb") as file:
        file.truncate(101 << 20)
    with comfyui(tmp_path / "comfyui") as own, runner(own.url, tmp_path / "work") as runs:
        with pytest.raises(JobFailed, match=r"big\.bin is larger") as failed:
            runs.run(inverting(), assets=[asset(path, placeholder="asset-1")])
        assert failed.value.code == "input_too_large"


def files_in(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for part in ("input", "output")
        for path in (folder / part).rglob("*")
    )


def test_what_a_run_left_in_comfyuis_folders_is_removed(own: Any, tmp_path: Path) -> None:
    base = tmp_path / "comfyui"
    with runner(own.url, tmp_path / "work", tidy_folder=base) as runs:
        runs.post(empty_image(prefix="other"))
        until(runs.is_idle)
        others = files_in(base)
        given = asset(picture(tmp_path / "a.png"), placeholder="asset-1")

        [output] = runs.run(inverting(), assets=[given])
        assert output.path.exists()
        assert files_in(base) == others

        graph = slow_image(SECONDS) | {"7": empty_image()["1"]}
        early = {"images": ["7", 0], "filename_prefix": "job-8/early"}
        graph["8"] = {"class_type": "SaveImage", "inputs": early}
        with pytest.raises(JobFailed):
            runs.run(graph, assets=[given], deadline_seconds=0.6)
        assert files_in(base) == others


def test_without_a_folder_to_tidy_everything_stays(own: Any, tmp_path: Path) -> None:
    with runner(own.url, tmp_path / "work") as runs:
        runs.run(empty_image(prefix="job-9/out"))
    assert "output/job-9/out_00001_.png" in files_in(tmp_path / "comfyui")
