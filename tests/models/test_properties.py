"""Definitions of properties, and the values a request may give them."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import EffectUnavailable, InvalidInput
from models.payload import check_overrides, primary_media, public_inputs, resolve
from models.properties import Property, parse_properties

FILE_ID = "0c6a3c1e-9f8e-4b57-8f0b-0a4c6b8f3a11"


def one(**definition: Any) -> Property:
    return parse_properties([{"name": "x", "type": "text"} | definition])[0]


def errors_of(definitions: Any) -> dict[str, list[str]]:
    with pytest.raises(InvalidInput) as refused:
        parse_properties(definitions)
    assert refused.value.errors
    return refused.value.errors


def resolved(prop: Property, value: Any) -> Any:
    return resolve([prop], {}, {prop.name: value})[prop.name]


def is_refused(prop: Property, value: Any) -> bool:
    with pytest.raises(InvalidInput) as refused:
        resolve([prop], {}, {prop.name: value})
    return refused.value.errors is not None and [*refused.value.errors] == [f"inputs.{prop.name}"]


def test_a_short_definition_is_filled_in():
    prop = one()
    assert (prop.placeholder, prop.required, prop.max_length) == ("{{x}}", True, 10_000)
    assert not one(type="integer", default=3).required
    assert one(required=False).default == ""


def test_a_property_survives_its_json_form():
    definitions = [
        {"name": "prompt", "type": "text", "max_length": 50, "placeholder": "%PROMPT%"},
        {"name": "size", "type": "integer", "default": 0, "min": 0, "max": 9, "label": "Size"},
        {"name": "on", "type": "boolean", "default": False},
        {"name": "mode", "type": "choice", "choices": ["a", 2], "default": 2},
        {"name": "photo", "type": "image"},
    ]
    properties = parse_properties(definitions)
    stored = json.loads(json.dumps([prop.to_json() for prop in properties]))
    assert parse_properties(stored) == properties


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ({"name": "Upper"}, "name"),
        ({"name": "1st"}, "name"),
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
        ({"name": "x\n"}, "name"),
        ({"name": "output_prefix", "placeholder": "@"}, "name"),
        ({"type": "audio"}, "type"),
        ({"type": ["text"]}, "type"),
        ({"placeholder": ""}, "placeholder"),
        ({"placeholder": "   "}, "placeholder"),
        ({"placeholder": 5}, "placeholder"),
        ({"placeholder": "{{output_prefix}}"}, "placeholder"),
        ({"placeholder": "output"}, "placeholder"),
        ({"placeholder": "\ud800"}, "placeholder"),
        ({"required": "yes"}, "required"),
        ({"type": "number", "required": False}, "required"),
        ({"type": "image", "required": False}, "required"),
        ({"type": "image", "default": FILE_ID}, "default"),
        ({"default": 5}, "default"),
        ({"default": "long", "max_length": 3}, "default"),
        ({"required": True, "default": ""}, "default"),
        ({"type": "integer", "default": 1.5}, "default"),
        ({"type": "integer", "default": True}, "default"),
        ({"type": "integer", "default": 11, "max": 10}, "default"),
        ({"type": "number", "default": math.nan}, "default"),
        ({"type": "number", "min": math.inf}, "min"),
        ({"type": "number", "min": "1"}, "min"),
        ({"type": "number", "min": 2, "max": 1}, "max"),
        ({"min": 1}, "min"),
        ({"type": "choice"}, "choices"),
        ({"type": "choice", "choices": []}, "choices"),
        ({"type": "choice", "choices": ["a", "a"]}, "choices"),
        ({"type": "choice", "choices": [["a"]]}, "choices"),
        ({"type": "choice", "choices": "abc"}, "choices"),
        ({"type": "choice", "choices": ["a"], "default": "b"}, "default"),
        ({"choices": ["a"]}, "choices"),
        ({"max_length": 0}, "max_length"),
        ({"max_length": True}, "max_length"),
        ({"max_length": 10**9}, "max_length"),
        ({"label": 7}, "label"),
        ({"maximum": 3}, "maximum"),
    ],
)
def test_a_faulty_definition_is_named_by_its_field(definition: dict[str, Any], field: str):
    errors = errors_of([{"name": "x", "type": "text"} | definition])
    assert [*errors] == [f"properties.0.{field}"]


@pytest.mark.parametrize("definitions", [None, {}, "text", [{}] * 101])
def test_definitions_are_a_short_list(definitions: Any):
    assert [*errors_of(definitions)] == ["properties"]


def test_names_and_placeholders_can_be_told_apart():
    first = {"name": "a", "type": "text", "placeholder": "<a>"}
    same_name = {"name": "a", "type": "text", "placeholder": "<b>"}
    inside = {"name": "c", "type": "text", "placeholder": "!<a>!"}
    around = {"name": "d", "type": "text", "placeholder": "a"}
    errors = errors_of([first, same_name, inside, around, 7])
    assert [*errors] == [
        "properties.1.name",
        "properties.2.placeholder",
        "properties.3.placeholder",
        "properties.4",
    ]


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ({"max_length": 3}, "äöü"),
        ({}, "line\n\ttab 👩‍👩‍👧 שלום é"),
        ({"required": False}, ""),
        ({"type": "integer"}, 2**64 - 1),
        ({"type": "integer"}, -(2**63)),
        ({"type": "number", "min": 0.5, "max": 3}, 3),
        ({"type": "number"}, 1e308),
        ({"type": "boolean"}, False),
        ({"type": "choice", "choices": ["a", "b"]}, "b"),
        ({"type": "choice", "choices": [1, 2]}, 2),
        ({"type": "video"}, FILE_ID),
    ],
)
def test_a_fitting_value_is_taken_as_it_is(definition: dict[str, Any], value: Any):
    taken = resolved(one(**definition), value)
    assert taken == value
    assert type(taken) is type(value)


@pytest.mark.parametrize(
    ("definition", "values"),
    [
        ({"max_length": 3}, ["four", "", 3, True, ["a"], {}, "\0", "\ud83d", "\udc00"]),
        ({"type": "integer", "min": 0, "max": 9}, [-1, 10, 1.0, "1", True, [1]]),
        ({"type": "integer"}, [2**64, -(2**63) - 1, 10**400]),
        ({"type": "number"}, [math.nan, math.inf, -math.inf, 10**400, "1.5", False]),
        ({"type": "number", "min": 0.5, "max": 1}, [0.4, 1.1]),
        ({"type": "boolean"}, [0, 1, "true", []]),
        ({"type": "choice", "choices": ["a", 1]}, ["b", True, "1", ["a"], {}]),
        ({"type": "image"}, ["../x.png", "", 5, FILE_ID + "\n", f"{{{FILE_ID}}}", [FILE_ID]]),
    ],
)
def test_a_value_that_does_not_fit_is_refused(definition: dict[str, Any], values: list[Any]):
    assert all(is_refused(one(**definition), value) for value in values)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_any_value_is_fitted_or_refused_by_name(value: Any):
    for kind in ("text", "number", "integer", "boolean", "image"):
        prop = one(type=kind)
        try:
            taken = resolved(prop, value)
        except InvalidInput:
            assert is_refused(prop, value)
        else:
            assert isinstance(taken, str | int | float | bool)
            assert json.loads(json.dumps(taken, allow_nan=False)) == taken


SIZES = parse_properties(
    [
        {"name": "photo", "type": "image"},
        {"name": "width", "type": "integer", "default": 64, "max": 100},
        {"name": "title", "type": "text", "required": False},
    ]
)


def test_values_come_from_override_then_user_then_default():
    photo = {"photo": FILE_ID.upper()}
    assert resolve(SIZES, {}, photo) == {"photo": FILE_ID, "width": 64, "title": ""}
    assert resolve(SIZES, {}, photo | {"width": 7, "title": None})["width"] == 7
    assert resolve(SIZES, {"width": 9}, photo)["width"] == 9


def test_every_problem_of_a_request_is_reported_at_once():
    with pytest.raises(InvalidInput) as refused:
        resolve(SIZES, {"title": "fixed"}, {"title": "mine", "width": 101, "depth": 1})
    assert refused.value.errors is not None
    names = {"inputs.title", "inputs.width", "inputs.depth", "inputs.photo"}
    assert {*refused.value.errors} == names


def test_a_flood_of_unknown_names_gets_a_short_answer():
    flood = {f"{index}-{'n' * 1000}": 1 for index in range(5_000)}
    with pytest.raises(InvalidInput) as refused:
        resolve([], {}, flood)
    assert len(json.dumps(refused.value.errors)) < 5_000


def test_overrides_are_checked_for_the_author_and_hidden_from_the_user():
    assert check_overrides(SIZES, {"width": 5, "title": None}) == {"width": 5}
    with pytest.raises(InvalidInput) as refused:
        check_overrides(SIZES, {"width": "wide", "depth": 1})
    assert {*(refused.value.errors or {})} == {"overrides.width", "overrides.depth"}
    with pytest.raises(EffectUnavailable):
        resolve(SIZES, {"width": 500}, {"photo": FILE_ID})


def test_the_public_inputs_leave_out_what_the_effect_fixed():
    assert public_inputs(SIZES, {"title": "fixed"}) == [
        {"name": "photo", "type": "image", "required": True, "default": None},
        {"name": "width", "type": "integer", "required": False, "default": 64, "max": 100},
    ]


def test_the_main_upload_answers_the_first_open_media_property():
    both = [*SIZES, *parse_properties([{"name": "mask", "type": "image"}])]
    assert primary_media(both, {}) == both[0]
    assert primary_media(both, {"photo": FILE_ID}) == both[-1]
    assert primary_media([], {}) is None
