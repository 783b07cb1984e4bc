"""Which graphs are accepted, and that the demo's are."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from models import graphs
from models.errors import InvalidInput
from models.graphs import check_graph
from models.payload import check_overrides, render, resolve
from models.properties import parse_properties

DEMO = Path(graphs.__file__).parent / "demo"
CATALOG = json.loads((DEMO / "catalog.json").read_text())
WORKFLOWS = {workflow["slug"]: workflow for workflow in CATALOG["workflows"]}

PROPERTIES = parse_properties(
    [
        {"name": "photo", "type": "image"},
        {"name": "title", "type": "text", "required": False},
        {"name": "style", "type": "choice", "choices": ["a.png", "b.png"]},
        {"name": "secret", "type": "choice", "choices": ["a.png", "../b.png"]},
        {"name": "size", "type": "integer"},
    ]
)


def node(class_type: str = "Paint", **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


# Uses every property in a place where it may be, so that each test adds one fault only.
USES = node(
    photo="{{photo}}", title="{{title}}", style="{{style}}", secret="{{secret}}", size="{{size}}"
)


def errors_of(graph: Any, output: str | None = "u", **options: Any) -> list[str]:
    with pytest.raises(InvalidInput) as refused:
        check_graph(graph, PROPERTIES, output, **options)
    return [*(refused.value.errors or {})]


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_a_plain_graph_is_accepted():
    loaders = {
        "1": node("LoadImage", image="{{photo}}", size="{{size}}"),
        "2": node("LoadImage", image="{{style}}"),
        "3": node("CheckpointLoaderSimple", ckpt_name="sdxl/base 1.0.safetensors"),
        "4": node("SaveImage", images=["1", 0], filename_prefix="{{output_prefix}}-{{size}}"),
        "5": node("Words", pair=["left", "right"], text="and so on... / {one|two}", empty={}),
    }
    check_graph(loaders | {"u": USES}, PROPERTIES, "4")
    check_graph({"u": USES}, PROPERTIES, None, allowed_nodes={"Paint"})


def test_a_placeholder_may_look_like_a_path_because_it_is_always_replaced():
    properties = parse_properties([{"name": "v", "type": "video", "placeholder": "/in/v.mp4"}])
    check_graph({"1": node("LoadVideo", file="/in/v.mp4")}, properties, "1")


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ([], "graph.1"),
        ({"inputs": {}}, "graph.1.class_type"),
        ({"class_type": 5, "inputs": {}}, "graph.1.class_type"),
        (node("{{title}}"), "graph.1.class_type"),
        ({"class_type": "Paint"}, "graph.1.inputs"),
        ({"class_type": "Paint", "inputs": None}, "graph.1.inputs"),
        (node(x=["7", 0]), "graph.1.inputs.x"),
        (node(x=["u", -1]), "graph.1.inputs.x"),
        (node(x=["u", 0.5]), "graph.1.inputs.x"),
        (node(x=[1, 0]), "graph.1.inputs.x"),
        (node(x=["1", 0]), "graph"),
        (node(x=["{{title}}", 0]), "graph.1.inputs.x"),
        (node(x=["{{title}}", "b"]), "graph.1.inputs.x"),
        (node(x={"deep": [["u", "{{size}}"]]}), "graph.1.inputs.x"),
        (node(x="see {{photo}}"), "graph.1.inputs.x"),
        (node(x="{{unknown}}"), "graph.1.inputs.x"),
        (node(x="{{ title }}"), "graph.1.inputs.x"),
        (node(x=[["{{unknown}}"]]), "graph.1.inputs.x"),
    ],
)
def test_a_faulty_node_is_named(bad: Any, where: str):
    assert errors_of({"1": bad, "u": USES}) == [where]


@pytest.mark.parametrize(
    "name",
    [
        *("/etc/passwd", "../x.png", "a/../../x.png", "C:\\x.png", "\\\\host\\x", "~/x", " /x"),
        *("FILE:///x", "x.png [output]", "x.png [temp]"),
        *("{{title}}", "a-{{title}}", "{{secret}}", "in/{{style}}"),
        *("../../etc/passwd", "..\\x.png", "http://h/x.png", "s3://bucket/x.png"),
    ],
)
@pytest.mark.parametrize("loader", ["LoadImage", "LoadVideo", "VHS_LoadVideoPath", "LoraLoader"])
def test_no_loader_reads_a_file_of_a_users_choosing(loader: str, name: str):
    assert errors_of({"1": node(loader, image=name), "u": USES}) == ["graph.1.inputs.image"]


MEDIA_LOADERS = ["LoadImage", "LoadImageMask", "LoadVideo", "LoadAudio", "VHS_LoadImagesPath"]


@pytest.mark.parametrize("loader", MEDIA_LOADERS)
@pytest.mark.parametrize(
    "name",
    ["a/b.png", "a\\b.png", "clipspace/x.png [input]", ["x", "a/b.png"], {"deep": "a/b.png"}],
)
def test_a_media_loader_reads_from_no_folder_but_the_input_folder(loader: str, name: Any):
    assert errors_of({"1": node(loader, any=name), "u": USES}) == ["graph.1.inputs.any"]


@pytest.mark.parametrize("loader", MEDIA_LOADERS)
def test_a_media_loader_takes_plain_names_and_media_placeholders(loader: str):
    graph = {
        "1": node(loader, image="{{photo}}", channel="alpha"),
        "2": node(loader, image="cat 1.png [input]"),
        "3": node(loader, image="{{style}}", frame_load_cap="{{size}}"),
    }
    check_graph(graph | {"u": USES}, PROPERTIES, "1")


def test_models_may_lie_in_folders():
    graph = {
        "1": node("LoraLoader", lora_name="sdxl/fine/detail.safetensors", model=["2", 0]),
        "2": node("UNETLoader", unet_name="wan\\2.1.safetensors"),
        "3": node("WanVideoModelLoader", model="WanVideo/2_1.safetensors"),
    }
    check_graph(graph | {"u": USES}, PROPERTIES, "1")


@pytest.mark.parametrize(
    ("class_type", "field"),
    [
        ("LoadImage", "image"),
        ("LoadVideo", "file"),
        ("LoadAudio", "audio"),
        ("VHS_LoadImagesPath", "directory"),
        ("SaveImage", "filename_prefix"),
        ("Anything", "path"),
    ],
)
def test_no_other_node_makes_the_name_of_a_file(class_type: str, field: str):
    """It could make a path out of a user's text."""
    text = node("PrimitiveString", value="{{title}}")
    graph = {"1": node(class_type, **{field: ["2", 0]}), "2": text, "u": USES}
    assert errors_of(graph) == [f"graph.1.inputs.{field}"]


def test_what_is_no_name_may_come_from_another_node():
    graph = {
        "1": node("VHS_LoadVideo", video="{{photo}}", vae=["2", 0]),
        "2": node("VAELoader", vae_name="v.safetensors"),
        "3": node("SaveImage", images=["1", 0], filename_prefix="{{output_prefix}}"),
    }
    check_graph(graph | {"u": USES}, PROPERTIES, "3")


def test_the_editors_own_format_is_told_as_such():
    with pytest.raises(InvalidInput, match="editor's format") as refused:
        check_graph({"nodes": [], "links": [], "version": 0.4}, PROPERTIES, None)
    assert [*(refused.value.errors or {})] == ["graph"]


def test_the_answer_to_a_graph_full_of_faults_is_short():
    assert len(errors_of({str(number): 5 for number in range(2_000)})) == graphs.PROBLEMS_REPORTED
    long = {"n" * 100_000: node(), "1": {"class_type": "x" * 100_000, "inputs": {}}}
    named = errors_of(long | {"2": node("X", **{"y" * 100_000: ["gone", 0]}), "u": USES})
    assert len(named) == 3
    assert max(map(len, named)) < 500


@pytest.mark.parametrize(
    "name", ["../../evil", "/srv/x", "{{title}}", "{{output_prefix}}{{title}}"]
)
@pytest.mark.parametrize("name_of_field", ["filename_prefix", "path", "output_dir"])
def test_nor_does_any_node_write_one(name_of_field: str, name: str):
    bad = node("Store", **{name_of_field: name})
    assert errors_of({"1": bad, "u": USES}) == [f"graph.1.inputs.{name_of_field}"]


def test_what_concerns_the_whole_graph():
    assert errors_of({"u": USES}, output="9") == ["output_node_id"]
    assert errors_of({"u": USES}, allowed_nodes={"SaveImage"}) == ["graph.u.class_type"]
    circle = {"1": node(x=["2", 0]), "2": node(x=["1", 0]), "u": USES}
    assert errors_of(circle) == ["graph"]
    unused = {"u": node(photo="{{photo}}", style="{{style}}", secret="{{secret}}")}
    assert errors_of(unused) == ["properties.1.placeholder", "properties.4.placeholder"]
    only_in_a_title = {"u": {**node(), "_meta": {"title": "{{photo}}"}}}
    assert "properties.0.placeholder" in errors_of(only_in_a_title)


@pytest.mark.parametrize(
    "graph",
    [
        None,
        [],
        {},
        {str(index): node() for index in range(2_001)},
        {"1": node(x=nested(40))},
        {"1": node(x=nested(100_000))},
        {"1": node(x="x" * 4_000_001)},
        {"1": node(x=float("nan"))},
        {"1": node(x=10**5000)},
        {"1": node(x="\0")},
        {"1": node(**{"\ud800": 1})},
        {"1": node(x=object())},
    ],
    ids=range(12),
)
def test_what_is_no_graph_at_all_is_refused_at_once(graph: Any):
    assert errors_of(graph) == ["graph"]


def test_a_text_used_too_often_would_fill_the_memory_when_rendered():
    many = node(x="{{title}}" * 2_000)
    assert errors_of({"1": many, "u": USES}) == ["graph"]


def test_a_long_run_of_braces_is_read_in_linear_time():
    # A quadratic scan would take hours, and run into the time limit of the test.
    check_graph({"1": node("LoadX", x="{" * 3_000_000), "u": USES}, PROPERTIES, "u")


@pytest.mark.parametrize("effect", CATALOG["effects"], ids=lambda effect: effect["slug"])
def test_every_demo_effect_is_accepted_and_renders(effect: dict[str, Any]):
    workflow = WORKFLOWS[effect["workflow"]]
    graph = json.loads((DEMO / workflow["graph"]).read_text())
    properties = parse_properties(workflow["properties"])
    check_graph(graph, properties, workflow["output_node_id"])
    check_overrides(properties, effect["overrides"])
    media = {prop.name: str(uuid4()) for prop in properties if prop.is_media}
    values = resolve(properties, effect["overrides"], media)
    rendered = render(graph, properties, values, output_prefix="job-1/out")
    assert "{{" not in json.dumps(rendered.graph)
    assert rendered.asset_tokens.keys() == media.keys()
    output = rendered.graph[workflow["output_node_id"]]
    assert output["inputs"]["filename_prefix"] == "job-1/out"


def test_the_demo_catalog_uses_every_graph_and_runs_every_workflow_on_its_fleet():
    files = {path.name for path in DEMO.glob("*.json")} - {"catalog.json"}
    assert {workflow["graph"] for workflow in WORKFLOWS.values()} == files
    assert [fleet["slug"] for fleet in CATALOG["fleets"]] == ["gpu-default"]
    assert {*CATALOG["fleets"][0]["workflows"]} == {*WORKFLOWS}
    assert {effect["workflow"] for effect in CATALOG["effects"]} == {*WORKFLOWS}
