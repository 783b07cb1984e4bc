"""Rendering: values enter a graph, and nothing that a user types can change its shape."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.graphs import check_graph
from models.payload import render, resolve
from models.properties import parse_properties

PREFIX = "job-7/out"
TOKEN = re.compile(r"asset-[0-9a-f]{32}")

PROPERTIES = parse_properties(
    [
        {"name": "prompt", "type": "text", "max_length": 1_000_000, "required": False},
        {"name": "note", "type": "text", "required": False, "placeholder": "%NOTE%"},
        {"name": "width", "type": "integer", "default": 64},
        {"name": "strength", "type": "number", "default": 0.5},
        {"name": "tiled", "type": "boolean", "default": True},
        {"name": "mode", "type": "choice", "choices": ["fast", "fine"], "default": "fast"},
        {"name": "photo", "type": "image"},
        {"name": "mask", "type": "image"},
    ]
)
GRAPH: dict[str, Any] = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "{{photo}}"}},
    "2": {"class_type": "LoadImageMask", "inputs": {"image": "{{mask}}", "channel": "alpha"}},
    "3": {
        "class_type": "Paint",
        "inputs": {
            "image": ["1", 0],
            "mask": ["2", 0],
            "text": "{{prompt}}",
            "caption": "a %NOTE%, {{width}} wide, {{strength}}, {{tiled}}: {{prompt}}{{prompt}}",
            "width": "{{width}}",
            "strength": "{{strength}}",
            "tiled": "{{tiled}}",
            "more": {"mode": "{{mode}}", "list": ["%NOTE%", 1, None]},
            "{{prompt}}": "a key is no place for a value",
        },
        "_meta": {"title": "{{prompt}}"},
    },
    "4": {
        "class_type": "SaveImage",
        "inputs": {"images": ["3", 0], "filename_prefix": "{{output_prefix}}"},
    },
}
FILES = {"photo": str(uuid4()), "mask": str(uuid4())}

FRAGMENTS = [
    *(prop.placeholder for prop in PROPERTIES),
    *("{{output_prefix}}", "%NOTE", "{", "}", "[", "]", '"', "\\", "\\u0022", "\\1", r"\g<0>"),
    *('", "class_type": "Evil"}', '["1", 0]', "null", "asset-" + "0" * 32),
    *("👩\u200d👩\u200d👧", "\u202e\u05e9\u05dc\u05d5\u05dd", "e\u0301\u0300", "\n", "\u2028"),
]
storable = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
hostile_text = st.one_of(
    st.text(storable, max_size=200),
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
)
TOKEN_PLACES = [("1", "inputs", "image"), ("2", "inputs", "image")]


def filled(**inputs: Any) -> dict[str, Any]:
    values = resolve(PROPERTIES, {}, FILES | inputs)
    return render(GRAPH, PROPERTIES, values, output_prefix=PREFIX).graph


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every scalar with the way to it; equal ways on both sides mean an equal shape."""
    if isinstance(value, dict | list):
        yield path, (type(value), len(value))
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def test_the_graph_of_these_tests_is_one_that_is_accepted():
    check_graph(GRAPH, PROPERTIES, "4")


def test_a_whole_placeholder_takes_the_type_and_a_part_the_json_spelling():
    painted = filled(prompt="cat", note="dog", width=3, strength=2, tiled=False)["3"]["inputs"]
    assert painted["text"] == "cat"
    assert painted["caption"] == "a dog, 3 wide, 2, false: catcat"
    assert (painted["width"], painted["strength"], painted["tiled"]) == (3, 2, False)
    assert painted["more"] == {"mode": "fast", "list": ["dog", 1, None]}


def test_media_become_tokens_that_differ_in_every_render():
    values = resolve(PROPERTIES, {}, FILES)
    first = render(GRAPH, PROPERTIES, values, output_prefix=PREFIX)
    second = render(GRAPH, PROPERTIES, values, output_prefix=PREFIX)
    assert first.graph["1"]["inputs"]["image"] == first.asset_tokens["photo"]
    assert first.graph["2"]["inputs"]["image"] == first.asset_tokens["mask"]
    tokens = {*first.asset_tokens.values(), *second.asset_tokens.values()}
    assert len(tokens) == 4
    assert all(TOKEN.fullmatch(token) for token in tokens)
    assert FILES["photo"] not in json.dumps(first.graph)


def test_the_graph_given_is_left_as_it_was_and_shares_nothing_with_the_result():
    before = deepcopy(GRAPH)
    rendered = filled(prompt="x")
    rendered["3"]["inputs"]["more"]["list"].append(1)
    rendered["3"]["_meta"]["title"] = "changed"
    rendered["3"]["inputs"]["image"][0] = "9"
    assert before == GRAPH


@pytest.mark.parametrize("written", ["ComfyUI", "../../evil", ""])
def test_a_prefix_of_its_own_is_replaced_because_a_repeated_one_is_answered_from_cache(
    written: str,
):
    graph = {"1": {"class_type": "SaveImage", "inputs": {"filename_prefix": written}}}
    rendered = render(graph, [], {}, output_prefix=PREFIX).graph
    assert rendered["1"]["inputs"]["filename_prefix"] == PREFIX


def test_a_prefix_may_add_to_the_jobs_own():
    graph = {"1": {"class_type": "S", "inputs": {"filename_prefix": "{{output_prefix}}-mask"}}}
    rendered = render(graph, [], {}, output_prefix=PREFIX).graph
    assert rendered["1"]["inputs"]["filename_prefix"] == f"{PREFIX}-mask"


def test_a_value_never_becomes_a_link_even_in_a_graph_that_was_not_checked():
    properties = parse_properties(
        [{"name": "node", "type": "text"}, {"name": "output", "type": "integer"}]
    )
    pair = ["{{node}}", "{{output}}"]
    inputs = {"a": ["{{node}}", 0], "b": ["2", "{{output}}"], "c": {"d": pair}}
    graph = {"1": {"class_type": "{{node}}", "inputs": inputs}}
    values = resolve(properties, {}, {"node": "2", "output": 0})
    assert render(graph, properties, values, output_prefix=PREFIX).graph == graph


@given(prompt=hostile_text, note=hostile_text)
@example(prompt='"' * 1_000_000, note="\\")
@example(prompt="{{photo}}", note="{{prompt}}")
@example(prompt="{{pro%NOTE%mpt}}", note="mpt}}")
def test_hostile_text_changes_nothing_but_its_own_places(prompt: str, note: str):
    plain = dict(leaves(filled(prompt="", note="")))
    hostile_graph = filled(prompt=prompt, note=note)
    hostile = dict(leaves(hostile_graph))
    assert hostile.keys() == plain.keys()
    ours = {
        ("3", "inputs", "text"): prompt,
        ("3", "inputs", "caption"): f"a {note}, 64 wide, 0.5, true: {prompt}{prompt}",
        ("3", "inputs", "more", "list", 0): note,
    }
    for path, value in hostile.items():
        if path in ours:
            assert value == ours[path]
        elif path in TOKEN_PLACES:
            assert TOKEN.fullmatch(value)
            assert value not in (prompt, note)
        else:
            assert value == plain[path]
            assert type(value) is type(plain[path])
    assert json.loads(json.dumps(hostile_graph)) == hostile_graph


@given(
    texts=st.lists(hostile_text, min_size=1, max_size=5),
    names=st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), unique=True, max_size=5),
)
def test_each_text_arrives_as_typed_whatever_the_others_hold(texts: list[str], names: list[str]):
    names = [name for name in names if name != "output_prefix"]
    properties = parse_properties([{"name": n, "type": "text", "required": False} for n in names])
    inputs = {name: f"{{{{{name}}}}}" for name in names}
    graph = {"1": {"class_type": "T", "inputs": {"together": "".join(inputs.values()), **inputs}}}
    if names:
        check_graph(graph, properties, "1")
    given_texts = {name: texts[index % len(texts)] for index, name in enumerate(names)}
    values = resolve(properties, {}, given_texts)
    rendered = render(graph, properties, values, output_prefix=PREFIX).graph["1"]["inputs"]
    assert rendered == {"together": "".join(given_texts.values())} | given_texts
