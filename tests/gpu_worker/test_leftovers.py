"""What a run left in ComfyUI's folders is removed, and nothing else."""

import json
import logging
from pathlib import Path

import pytest

from gpu_worker.leftovers import Leftovers
from gpu_worker.outputs import SavedFile, SavedText


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path / "comfyui"
    for name in ("input/a.png", "input/b.png", "output/job-1/x.png", "output/y.png", "secret.txt"):
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return base


def left(base: Path) -> set[str]:
    return {str(path.relative_to(base)) for path in base.rglob("*") if not path.is_dir()}


def test_only_the_named_files_go_and_their_empty_folder_with_them(base: Path) -> None:
    Leftovers(base).remove(
        uploads=["a.png"], saved=[SavedFile("x.png", "job-1"), SavedText("kept nowhere")]
    )
    assert left(base) == {"input/b.png", "output/y.png", "secret.txt"}
    assert not (base / "output/job-1").exists()
    assert (base / "output").is_dir()


def test_a_folder_with_other_files_stays(base: Path) -> None:
    (base / "output/job-1/z.png").touch()
    Leftovers(base).remove(uploads=[], saved=[SavedFile("x.png", "job-1")])
    assert (base / "output/job-1/z.png").exists()


def test_nothing_outside_is_touched(base: Path) -> None:
    before = left(base)
    Leftovers(base).remove(
        uploads=["../secret.txt", str(base / "secret.txt"), "..", "", ".", "gone.png", "a\0b"],
        saved=[
            SavedFile("secret.txt", ".."),
            SavedFile("../../secret.txt", "job-1"),
            SavedFile("secret.txt", str(base)),
            SavedFile("job-1", ""),
        ],
    )
    assert left(base) == before


def test_links_are_neither_followed_nor_removed(base: Path) -> None:
    (base / "output/way-out").symlink_to(base)
    (base / "output/link.txt").symlink_to(base / "secret.txt")
    before = left(base)
    Leftovers(base).remove(
        uploads=[],
        saved=[SavedFile("secret.txt", "way-out"), SavedFile("link.txt", "")],
    )
    assert left(base) == before


def test_a_file_that_stays_is_told_and_the_rest_goes_on(
    base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Leftovers(base).remove(uploads=["x" * 5000, "a.png"], saved=[])
    assert "Could not remove" in caplog.text
    assert not (base / "input/a.png").exists()


def test_a_missing_folder_is_nothing_to_tidy(tmp_path: Path) -> None:
    Leftovers(tmp_path / "nowhere").remove(uploads=["a.png"], saved=[SavedFile("x", "")])


def test_previews_lie_in_a_folder_of_their_own(base: Path) -> None:
    (base / "temp").mkdir()
    (base / "temp/y.png").touch()
    Leftovers(base).remove(previews=[SavedFile("y.png", "")])
    assert not (base / "temp/y.png").exists()
    assert (base / "output/y.png").exists()


def test_what_was_noted_goes_whatever_the_run_came_to(base: Path) -> None:
    leftovers = Leftovers(base)
    leftovers.note("1", ["a.png", "never-came.png"])
    (base / "output/job-1-2/deeper").mkdir(parents=True)
    (base / "output/job-1-2/deeper/z.png").touch()
    (base / "output/job-12-1").mkdir()
    (base / "output/job-1-3").symlink_to(base / "input")
    leftovers.remove_noted()
    assert {path.name for path in (base / "output").iterdir()} == {
        "job-1", "job-12-1", "job-1-3", "y.png",
    }  # fmt: skip
    assert {path.name for path in (base / "input").iterdir()} == {"b.png"}


@pytest.mark.parametrize("job_id", ["", "*", "../..", "[a-z]", "x" * 101])
def test_an_odd_job_id_names_no_folder(base: Path, job_id: str) -> None:
    (base / "output/job-x-1").mkdir()
    before = set((base / "output").iterdir())
    leftovers = Leftovers(base)
    leftovers.note(job_id, [])
    leftovers.remove_noted()
    assert set((base / "output").iterdir()) == before


def test_notes_outlive_the_process_until_what_they_name_is_gone(base: Path) -> None:
    notes = base / "leftovers.json"
    first = Leftovers(base)
    first.keep_in(notes)
    first.note("7", ["a.png"])
    assert json.loads(notes.read_text()) == [{"job_id": "7", "uploads": ["a.png"]}]

    later = Leftovers(base)
    later.keep_in(notes)
    later.remove_noted()
    assert not (base / "input/a.png").exists()
    assert json.loads(notes.read_text()) == []


@pytest.mark.parametrize("content", ["", "{", "{}", "[1, null]", '[{"job_id": "1"}]', '["x"]'])
def test_notes_that_make_no_sense_are_told_and_left(
    base: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (base / "leftovers.json").write_text(content)
    before = left(base)
    leftovers = Leftovers(base)
    leftovers.keep_in(base / "leftovers.json")
    leftovers.remove_noted()
    assert left(base) == before
    assert ("can't be read" in caplog.text) == (content != "{}")


def test_without_a_folder_nothing_is_noted(tmp_path: Path) -> None:
    leftovers = Leftovers(None)
    leftovers.keep_in(tmp_path / "notes.json")
    leftovers.note("1", ["a.png"])
    leftovers.remove(uploads=["a.png"])
    leftovers.remove_noted()
    assert list(tmp_path.iterdir()) == []
