"""What a run left in ComfyUI's folders is removed, and nothing else."""

import logging
from pathlib import Path

import pytest

from gpu_worker import leftovers
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
    leftovers.remove(
        base, uploads=["a.png"], outputs=[SavedFile("x.png", "job-1"), SavedText("kept nowhere")]
    )
    assert left(base) == {"input/b.png", "output/y.png", "secret.txt"}
    assert not (base / "output/job-1").exists()
    assert (base / "output").is_dir()


def test_a_folder_with_other_files_stays(base: Path) -> None:
    (base / "output/job-1/z.png").touch()
    leftovers.remove(base, uploads=[], outputs=[SavedFile("x.png", "job-1")])
    assert (base / "output/job-1/z.png").exists()


def test_nothing_outside_is_touched(base: Path) -> None:
    before = left(base)
    leftovers.remove(
        base,
        uploads=["../secret.txt", str(base / "secret.txt"), "..", "", ".", "gone.png", "a\0b"],
        outputs=[
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
    leftovers.remove(
        base,
        uploads=[],
        outputs=[SavedFile("secret.txt", "way-out"), SavedFile("link.txt", "")],
    )
    assert left(base) == before


def test_a_file_that_stays_is_told_and_the_rest_goes_on(
    base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        leftovers.remove(base, uploads=["x" * 5000, "a.png"], outputs=[])
    assert "Could not remove" in caplog.text
    assert not (base / "input/a.png").exists()


def test_a_missing_folder_is_nothing_to_tidy(tmp_path: Path) -> None:
    leftovers.remove(tmp_path / "nowhere", uploads=["a.png"], outputs=[SavedFile("x", "")])
