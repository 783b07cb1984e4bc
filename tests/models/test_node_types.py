"""Which types of nodes a setting allows."""

import json

import pytest

from models.node_types import CORE, NodeList
from models.settings import Settings
from tests.models.test_graphs import DEMO, WORKFLOWS

#: They reach beyond a job of their own.
LEFT_OUT = [
    *("LoadImageOutput", "LoadLatent", "LoadImageDataSetFromFolder", "LoadTrainingDataset"),
    *("CheckpointSave", "ModelSave", "LoraSave", "SaveImageDataSetToFolder", "SaveTrainingDataset"),
    *("TrainLoraNode", "RegexReplace", "WebcamCapture", "RecordAudio"),
    *("KlingTextToVideoNode", "OpenAIChatNode"),
]


def test_the_usual_list_has_what_comfyui_brings_and_no_more() -> None:
    usual = NodeList(Settings.allowed_nodes)
    for name in ("LoadImage", "KSampler", "SaveVideo", "Epsilon Scaling", "CLIPTextEncode"):
        assert name in usual
    assert [name for name in [*LEFT_OUT, "core", "", "VHS_LoadVideo"] if name in usual] == []
    assert len(CORE) > 300
    assert all(name == name.strip() for name in CORE)


def test_names_and_patterns_come_beside_it() -> None:
    allowed = NodeList(" core ,VHS_*, Power Lora Loader (rgthree),*Blur*, ")
    for name in ("SaveImage", "VHS_LoadVideo", "Power Lora Loader (rgthree)", "FastBlurFX"):
        assert name in allowed
    for name in ("XVHS_LoadVideo", "Power Lora Loader", "VHS", "vhs_LoadVideo", "core", None, 5):
        assert name not in allowed


@pytest.mark.parametrize("name", ["SaveImage", "Anything at all", "a.b(c)[d]*"])
def test_a_star_alone_allows_all_and_nothing_allows_none(name: str) -> None:
    assert name in NodeList("*")
    assert name not in NodeList("")
    assert name not in NodeList(" , ")


def test_what_stands_in_a_name_is_no_pattern() -> None:
    assert "aXb" not in NodeList("a.b")
    assert "ab" not in NodeList("a|b")
    assert "a.b" in NodeList("a.b")


def test_the_demo_needs_nothing_beside_it_but_the_stand_ins_slow_node() -> None:
    used = {
        node["class_type"]
        for workflow in WORKFLOWS.values()
        for node in json.loads((DEMO / workflow["graph"]).read_text()).values()
    }
    assert {name for name in used if name not in NodeList("core")} == {"SlowImage"}
