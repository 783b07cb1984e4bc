"""Which files a run made, by its history entry, and what they are called."""

from typing import Any

import pytest

from gpu_worker import outputs
from gpu_worker.outputs import SavedFile, SavedText
from models import object_paths


def item(filename: str, kind: str = "output", subfolder: str = "") -> dict[str, Any]:
    return {"filename": filename, "subfolder": subfolder, "type": kind}


@pytest.mark.parametrize("key", ["images", "videos", "gifs", "audio", "files", "3d", "latents"])
def test_files_are_found_under_every_key(key: str) -> None:
    made = {"4": {key: [item("a.mp4", subfolder="s"), item("b.mp4")], "animated": [True]}}
    assert outputs.found(made, output_node_id="4") == [
        SavedFile("a.mp4", "s"),
        SavedFile("b.mp4", ""),
    ]


def test_only_the_output_node_counts_when_there_is_one() -> None:
    made = {"3": {"images": [item("a.png")]}, "10": {"images": [item("b.png")]}}
    assert outputs.found(made, output_node_id="10") == [SavedFile("b.png", "")]
    assert outputs.found(made, output_node_id="9") == []


def test_all_outputs_are_kept_in_order_and_once() -> None:
    made = {
        "10": {"images": [item("c.png")]},
        "x": {"images": [item("d.png")]},
        "2": {"images": [item("b.png"), item("a.png"), item("b.png")]},
    }
    names = [file.filename for file in outputs.found(made, output_node_id=None)]  # type: ignore[union-attr]
    assert names == ["b.png", "a.png", "c.png", "d.png"]


def test_previews_and_things_that_are_no_files_are_left_out() -> None:
    made = {
        "1": {"images": [item("a.png", "temp"), item("b.png", "input"), None, 7, "x", {}, []]},
        "2": {"images": [{"filename": 5}, {"filename": ""}, {"filename": "c", "subfolder": 1}]},
        "3": {"images": None, "text": {"a": 1}},
        "4": None,
    }
    assert outputs.found(made, output_node_id=None) == []
    assert outputs.found(None, output_node_id=None) == []
    assert outputs.found({}, output_node_id="1") == []


def test_texts_become_one_text() -> None:
    assert outputs.found({"1": {"text": ["a", "b", 3]}}, output_node_id=None) == [SavedText("a\nb")]


def test_a_text_that_was_taken_apart_is_put_together() -> None:
    apart = {"1": {"text": list("a text\n")}}
    assert outputs.found(apart, output_node_id=None) == [SavedText("a text\n")]
    lines = {"1": {"text": ["a", "", "bc"]}}
    assert outputs.found(lines, output_node_id=None) == [SavedText("a\n\nbc")]


@pytest.mark.parametrize("odd", ["a\0.png", "a\ud800.png"])
def test_what_no_address_can_name_is_left_out(odd: str) -> None:
    made = {"1": {"images": [item(odd), item("b.png", subfolder=odd), item("c.png")]}}
    assert outputs.found(made, output_node_id=None) == [SavedFile("c.png", "")]


@pytest.mark.parametrize(
    ("filename", "mime_type"),
    [
        ("a.png", "image/png"),
        ("a.JPEG", "image/jpeg"),
        ("a.b.mp4", "video/mp4"),
        ("a.opus", "audio/ogg"),
        ("a.glb", "model/gltf-binary"),
        ("a.exe", "application/octet-stream"),
        ("png", "image/png"),
        ("", "application/octet-stream"),
    ],
)
def test_the_type_is_told_by_the_ending(filename: str, mime_type: str) -> None:
    assert outputs.mime_type_of(SavedFile(filename, "")) == mime_type


def test_every_type_can_be_stored() -> None:
    assert outputs.ENDINGS == object_paths.EXTENSIONS


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("out_00001_.png", "out.png"),
        ("../../etc/passwd", "passwd.bin"),
        ("C:\\temp\\a.JPEG", "a.jpg"),
        ("..png", "output.png"),
        ("_00001_.png", "output.png"),
        ("a\u202egnp.exe", "agnp.bin"),
        ("x" * 300 + ".mp4", "x" * 100 + ".mp4"),
        ("día.webp", "día.webp"),
    ],
)
def test_names_are_fit_for_people(filename: str, name: str) -> None:
    assert outputs.names_for([SavedFile(filename, "")]) == [name]


def test_names_differ() -> None:
    made = [
        SavedFile("out_00001_.png", ""),
        SavedFile("out_00002_.png", ""),
        SavedFile("out_00001_.mp4", ""),
        SavedText("a"),
        SavedText("b"),
    ]
    assert outputs.names_for(made) == [  # type: ignore[arg-type]
        "out.png",
        "out-2.png",
        "out.mp4",
        "text.txt",
        "text-2.txt",
    ]
