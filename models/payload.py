"""From an effect and a user's inputs to the graph that ComfyUI runs.

The value of each property comes from the effect's override, else the user's input, else the
workflow's default. An override locks its property: the user neither sees nor sets it, so an
effect's price can rest on what it fixed.

Values enter the parsed graph, never its text, and only inside the nodes' `inputs`: keys, node
types and links stay what the workflow's author wrote, whatever the values hold.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from models.errors import EffectUnavailable, InvalidInput
from models.properties import OUTPUT_PREFIX, Problems, Property, Value, fit, refuse_if

Graph = dict[str, Any]

UNKNOWN_NAMES_REPORTED = 20


@dataclass(frozen=True)
class Rendered:
    """A graph ready to run, but for its media.

    `asset_tokens` maps each media property to the string that stands for its file. Whoever
    uploads the file to ComfyUI replaces the strings equal to the token by the name ComfyUI gave.
    """

    graph: Graph
    asset_tokens: dict[str, str]


def check_overrides(
    properties: Sequence[Property], overrides: Mapping[str, object]
) -> dict[str, Value]:
    """The overrides of an effect as its workflow takes them, or InvalidInput."""
    known = {prop.name: prop for prop in properties}
    fixed: dict[str, Value] = {}
    problems: Problems = {}
    for name, value in overrides.items():
        if name not in known:
            problems[f"overrides.{name[:64]}"] = ["The workflow has no such property."]
        elif value is not None:
            try:
                fixed[name] = fit(known[name], value)
            except ValueError as unfit:
                problems[f"overrides.{name}"] = [str(unfit)]
    refuse_if(problems, "The overrides don't fit the workflow.")
    return fixed


def resolve(
    properties: Sequence[Property], overrides: Mapping[str, object], inputs: Mapping[str, object]
) -> dict[str, Value]:
    """One value for every property. A media value is a file id; its owner is checked elsewhere."""
    try:
        values = check_overrides(properties, overrides)
    except InvalidInput as misfit:
        # The workflow changed under the effect: nothing that the user sends could repair it.
        raise EffectUnavailable("The effect's settings no longer fit its workflow.") from misfit
    problems = _names_not_accepted(properties, values, inputs)
    for prop in properties:
        if prop.name not in values:
            try:
                values[prop.name] = _choose(prop, inputs.get(prop.name))
            except ValueError as unfit:
                problems[f"inputs.{prop.name}"] = [str(unfit)]
    refuse_if(problems, "Some inputs can't be used.")
    return values


def public_inputs(
    properties: Sequence[Property], overrides: Mapping[str, object]
) -> list[dict[str, Any]]:
    """What a user may set, in the shape the API shows: no locked property, no placeholder."""
    return [
        {"default": None} | {k: v for k, v in prop.to_json().items() if k != "placeholder"}
        for prop in properties
        if overrides.get(prop.name) is None
    ]


def primary_media(
    properties: Sequence[Property], overrides: Mapping[str, object]
) -> Property | None:
    """The property that a job's main upload answers: the first open one of a media type."""
    open_media = (p for p in properties if p.is_media and overrides.get(p.name) is None)
    return next(open_media, None)


def render(
    graph: Graph,
    properties: Sequence[Property],
    values: Mapping[str, Value],
    *,
    output_prefix: str,
) -> Rendered:
    """Fill a checked graph with resolved values. The graph given is left as it was."""
    # Drawn after the user typed, so no text of theirs can name a file.
    tokens = {p.name: f"asset-{secrets.token_hex(16)}" for p in properties if p.is_media}
    chosen = {**values, **tokens}
    filling = {OUTPUT_PREFIX: output_prefix} | {p.placeholder: chosen[p.name] for p in properties}
    pattern = placeholder_pattern(filling)
    rendered = {
        node_id: {
            field: _fill_inputs(content, filling, pattern)
            if field == "inputs"
            else deepcopy(content)
            for field, content in node.items()
        }
        for node_id, node in graph.items()
    }
    return Rendered(rendered, tokens)


def placeholder_pattern(placeholders: Iterable[str]) -> re.Pattern[str]:
    """One pattern for all of them: one pass over a string never looks at what it put in."""
    return re.compile("|".join(re.escape(placeholder) for placeholder in placeholders))


def may_be_link(items: list[Any]) -> bool:
    """ComfyUI takes any [text, number] for a link to another node.

    A placeholder in a list of two could make one out of a user's value, so none is filled there.
    """
    return len(items) == 2


def _fill_inputs(inputs: Any, filling: Mapping[str, Value], pattern: re.Pattern[str]) -> Any:
    filled = _fill(inputs, filling, pattern)
    written = inputs.get("filename_prefix")
    if isinstance(written, str) and OUTPUT_PREFIX not in written:
        # ComfyUI answers a repeated save from its cache, with the name of a file that may be
        # gone by then. A prefix used by no other job makes the node run.
        filled["filename_prefix"] = filling[OUTPUT_PREFIX]
    return filled


def _fill(value: Any, filling: Mapping[str, Value], pattern: re.Pattern[str]) -> Any:
    match value:
        case str():
            if value in filling:
                return filling[value]
            return pattern.sub(lambda found: _spell(filling[found[0]]), value)
        case dict():
            return {key: _fill(item, filling, pattern) for key, item in value.items()}
        case list() if may_be_link(value):
            return [i if isinstance(i, str) else _fill(i, filling, pattern) for i in value]
        case list():
            return [_fill(item, filling, pattern) for item in value]
        case _:
            return value


def _spell(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _choose(prop: Property, given: object) -> Value:
    if given is not None:
        return fit(prop, given)
    if prop.default is not None:
        return prop.default
    raise ValueError("This input is required.")


def _names_not_accepted(
    properties: Sequence[Property], locked: Mapping[str, Value], inputs: Mapping[str, object]
) -> Problems:
    known = {prop.name for prop in properties}
    unknown = [name for name in inputs if name not in known]
    problems = {
        # A request full of made-up names gets a short answer, not an echo of itself.
        f"inputs.{name[:64]}": ["The effect has no such input."]
        for name in unknown[:UNKNOWN_NAMES_REPORTED]
    }
    for name in locked.keys() & inputs.keys():
        problems[f"inputs.{name}"] = ["The effect sets this itself; it can't be changed."]
    return problems
