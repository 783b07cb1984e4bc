"""`comfyfleet workflows …`: upload, look, go back, switch off."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.workflows import Kind
from scripts import cli_workflows
from tasks.backend import Backend
from tests.scripts.catalog_commands import Run, audited, runner, told

GRAPH = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": "{{width}}"}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}},
}
PLAIN = {"3": {"class_type": "EmptyImage", "inputs": {}}}
WIDTH = [{"name": "width", "type": "integer", "default": 8}]


@pytest.fixture
def backend(sqlite: Backend) -> Backend:
    return sqlite


@pytest.fixture
def run(demo: Backend) -> Run:
    return runner(demo, "workflows")


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(document: Any, name: str = "graph.json") -> Path:
        path = tmp_path / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    return write


def test_a_graph_is_uploaded_and_listed(run: Run, file: Any, demo: Backend) -> None:
    properties = file(WIDTH, "properties.json")
    given = ["--slug", "card", "--kind", "image", "--properties", properties, "--output-node", 2]
    done = run("upload", file(GRAPH), *given)
    assert done.stdout == "card runs version 1 now (new).\n"
    assert audited(demo) == [("workflow.upload", "cli")]
    [card] = [one for one in told(run, "list") if one["slug"] == "card"]
    assert (card["name"], card["version"], card["fleet"]) == ("card", 1, None)
    assert card["created_at"].endswith("Z")
    listed = run("list").stdout.splitlines()
    assert listed[0].split() == ["workflow", "name", "makes", "version", "on", "fleet", "effects"]
    assert listed[2].split() == ["card", "card", "image", "1", "yes", "-", "-"]


def test_another_version_needs_the_graph_only(run: Run, file: Any) -> None:
    whole = {"slug": "card", "name": "Card", "kind": "image", "graph": GRAPH, "properties": WIDTH}
    run("upload", file(whole | {"output_node_id": "2"}))
    other = GRAPH | {"3": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}}
    assert "version 2 now (new)" in run("upload", file(other), "--slug", "card").stdout
    assert "version 1 now (known before)" in run("upload", file(GRAPH), "--slug", "card").stdout
    shown = told(run, "show", "card", "--version", 2)
    assert (shown["name"], shown["output_node_id"], shown["version"]) == ("Card", "2", 1)
    assert shown["graph"] == other
    assert json.loads(run("show", "card", "--graph").stdout) == GRAPH
    listed = told(run, "versions", "card")
    assert [(one["version"], one["is_in_use"]) for one in listed] == [(2, False), (1, True)]
    assert run("versions", "card").stdout.count("\n") == 3


def test_an_older_version_is_activated_by_number_and_by_hash(run: Run, file: Any) -> None:
    run("upload", file(PLAIN), "--slug", "c", "--kind", "image")
    second = run("upload", file(PLAIN | {"4": PLAIN["3"]}), "--slug", "c")
    assert "version 2" in second.stdout
    assert run("activate", "c", 1).stdout == "c runs version 1 now.\n"
    newest = told(run, "versions", "c")[0]["content_hash"]
    assert run("activate", "c", newest).stdout == "c runs version 2 now.\n"
    assert "no such version" in run("activate", "c", 9, exit_code=2).stderr
    assert "no such version" in run("activate", "c", "x" * 64, exit_code=2).stderr


def test_it_is_shown_in_words(run: Run) -> None:
    words = run("show", "image-blur").stdout
    assert "image-blur: Blur an image, makes image, on" in words
    assert "fleet in this stage: gpu-default" in words
    assert "effects: image-blur" in words
    assert "{{radius}}" in words


def test_it_is_switched_off_and_on(run: Run) -> None:
    done = run("off", "image-blur")
    assert "image-blur is off: nobody can order it." in done.stdout
    assert "image-blur: Its workflow 'image-blur' is switched off." in done.stdout
    assert "image-blur!" in run("list").stdout
    assert run("on", "image-blur").stdout == "image-blur is on.\n"


def test_an_upload_that_leaves_effects_behind_says_so(run: Run, file: Any) -> None:
    none = file([], "none.json")
    done = run(
        "upload", file(PLAIN), "--slug", "image-scale", "--output-node", 3, "--properties", none
    )
    assert "thumbnail: It no longer fits its workflow." in done.stdout


@pytest.mark.parametrize(
    ("document", "options", "said"),
    [
        ("{", [], "can't be read as JSON"),
        ("[" * 100_000, [], "can't be read as JSON"),
        ('{"1": NaN}', [], "JSON has no NaN"),
        (GRAPH, [], "--slug"),
        (GRAPH, ["--slug", "card"], "--kind"),
        ({"graph": GRAPH, "colour": 1}, [], "mean nothing: colour"),
        ({"graph": GRAPH, "slug": 5}, [], "have to be texts: slug"),
        (GRAPH, ["--slug", "A Card", "--kind", "image"], "slug: Takes at most 63"),
        (GRAPH, ["--slug", "card", "--kind", "image"], "Holds a placeholder that no property"),
        ([], ["--slug", "card", "--kind", "image"], "graph: Must be an object"),
        ({"nodes": []}, ["--slug", "card", "--kind", "image"], "editor's format"),
        (
            PLAIN,
            ["--slug", "always-fails", "--kind", "video", "--output-node", "3"],
            "makes image, and that stays so",
        ),
    ],
)
def test_what_can_not_be_uploaded_is_told_in_words(
    run: Run, file: Any, document: Any, options: list[str], said: str
) -> None:
    assert said in run("upload", file(document), *options, exit_code=2).stderr


def test_every_fault_has_a_line_of_its_own(run: Run, file: Any) -> None:
    bad = {"1": {"class_type": "RunShell", "inputs": {"path": "/etc/passwd"}}}
    error = run("upload", file(bad), "--slug", "c", "--kind", "image", exit_code=2).stderr
    assert error.splitlines() == [
        "invalid_input: The graph can't be used as it is.",
        "  graph.1.class_type: This type of node is not allowed here.",
        "  graph.1.inputs.path: Must name a file inside the input folder.",
    ]
    allowed = {"COMFYFLEET_ALLOWED_NODES": "core, RunShell"}
    bad["1"]["inputs"] = {}
    run("upload", file(bad), "--slug", "c", "--kind", "image", **allowed)


@pytest.mark.parametrize("command", ["show", "versions", "on", "off"])
def test_what_does_not_exist_is_told(run: Run, command: str) -> None:
    assert "There is no workflow 'nothing'." in run(command, "nothing", exit_code=2).stderr


def test_the_kinds_are_those_of_workflows() -> None:
    assert [*Kind] == cli_workflows.KINDS
