"""What a workflow asks for: typed properties, and which values fit them.

A property that passed `parse_properties` is safe to use everywhere: its default fits its own
limits, its placeholder can't be confused with another's, and an optional one always has a value
to fall back on, because a graph has no way to hold "nothing". Null always means "not given".
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any
from uuid import UUID

from models.errors import InvalidInput

Value = str | int | float | bool
Problems = dict[str, list[str]]

MEDIA = ("image", "video")
NUMERIC = ("number", "integer")
TYPES = ("text", *NUMERIC, "boolean", "choice", *MEDIA)

# Filled in by the system for every graph, so no property may take it.
OUTPUT_PREFIX = "{{output_prefix}}"

# ComfyUI's seeds are unsigned, so the range is the union of signed and unsigned 64 bit.
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
TEXT_MAX_LENGTH, TEXT_MAX_LENGTH_LIMIT = 10_000, 1_000_000
PROPERTIES_MAX, CHOICES_MAX, LABEL_MAX_LENGTH = 100, 1_000, 200

# PostgreSQL stores no NUL in text or jsonb, and half a surrogate pair has no UTF-8 form.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FILE_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, kw_only=True)
class Property:
    """One input of a workflow. Made by `parse_properties`, which checks what it holds."""

    name: str
    type: str
    placeholder: str
    required: bool
    default: Value | None = None
    choices: tuple[Value, ...] | None = None
    min: int | float | None = None
    max: int | float | None = None
    label: str | None = None
    max_length: int | None = None

    @classmethod
    def from_json(cls, definition: dict[str, Any]) -> "Property":
        """Fills the gaps of a definition whose fields were checked one by one."""
        given = {"placeholder": f"{{{{{definition['name']}}}}}"} | definition
        given.setdefault("required", "default" not in given)
        if given["type"] == "text":
            given.setdefault("max_length", TEXT_MAX_LENGTH)
            if not given["required"]:
                given.setdefault("default", "")
        if "choices" in given:
            given["choices"] = tuple(given["choices"])
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        given = {field: value for field, value in asdict(self).items() if value is not None}
        return given | {"choices": list(self.choices)} if self.choices else given

    @property
    def is_media(self) -> bool:
        return self.type in MEDIA


def parse_properties(definitions: object) -> list[Property]:
    """The properties of a workflow, or InvalidInput that names every faulty definition."""
    if not isinstance(definitions, list) or len(definitions) > PROPERTIES_MAX:
        sentence = f"Must be a list of at most {PROPERTIES_MAX} properties."
        raise InvalidInput.field("properties", sentence)
    problems: Problems = {}
    properties: list[Property] = []
    for index, definition in enumerate(definitions):
        found = _parse_into(properties, definition)
        for field, sentence in found.items():
            problems[f"properties.{index}.{field}".rstrip(".")] = [sentence]
    refuse_if(problems, "The properties can't be used as they are.")
    return properties


def fit(prop: Property, value: object) -> Value:
    """The value as this property takes it. ValueError carries the sentence for the sender."""
    match prop.type:
        case "text":
            return _fit_text(prop, value)
        case "number" | "integer":
            return _fit_number(prop, value)
        case "boolean":
            if isinstance(value, bool):
                return value
            raise ValueError("Must be true or false.")
        case "choice":
            return _fit_choice(prop.choices or (), value)
        case _:
            if isinstance(value, str) and _FILE_ID.fullmatch(value):
                return str(UUID(value))
            raise ValueError("Must be the id of an uploaded file.")


def is_number(value: object) -> bool:
    """A finite number of 64 bits. Python counts True and False as integers; JSON does not."""
    if isinstance(value, float):
        return isfinite(value)
    return is_integer(value)


def is_integer(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return INTEGER_MIN <= value <= INTEGER_MAX


def refuse_if(problems: Problems, detail: str) -> None:
    if problems:
        raise InvalidInput(detail, errors=problems)


def _fit_text(prop: Property, value: object) -> str:
    longest = prop.max_length or TEXT_MAX_LENGTH
    if not isinstance(value, str):
        raise ValueError("Must be text.")
    if len(value) > longest:
        raise ValueError(f"Must have at most {longest} characters.")
    if prop.required and not value:
        raise ValueError("Must not be empty.")
    if UNSTORABLE.search(value):
        raise ValueError("Must not hold NUL characters or broken Unicode.")
    return value


def _fit_number(prop: Property, value: Any) -> int | float:
    if prop.type == "integer" and not is_integer(value):
        raise ValueError("Must be a whole number of at most 64 bits.")
    if not is_number(value):
        raise ValueError("Must be a finite number.")
    number: int | float = value
    if prop.min is not None and number < prop.min:
        raise ValueError(f"Must be at least {prop.min}.")
    if prop.max is not None and number > prop.max:
        raise ValueError(f"Must be at most {prop.max}.")
    return number


def _fit_choice(choices: Sequence[Value], value: object) -> Value:
    for choice in choices:
        # 1 == True in Python, so equality alone would let a boolean pick a number.
        if isinstance(choice, bool) == isinstance(value, bool) and choice == value:
            return choice
    raise ValueError("Must be one of the choices.")


def _parse_into(properties: list[Property], definition: object) -> dict[str, str]:
    """Adds the property, or says by field what is wrong with it."""
    if not isinstance(definition, dict):
        return {"": "Must be an object."}
    # A form sends null, or an empty list, for what was left blank.
    given = {field: value for field, value in definition.items() if value not in (None, [])}
    problems = _field_problems(given)
    if not problems:
        prop = Property.from_json(given)
        problems = _limit_problems(prop) | _clashes(prop, properties)
        properties.append(prop)
    return problems


def _is_label(value: object) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= LABEL_MAX_LENGTH:
        return False
    return bool(value.strip()) and not UNSTORABLE.search(value)


def _are_choices(value: object) -> bool:
    """Different texts or numbers: JSON has no other scalar that a person could choose by."""
    if not isinstance(value, list) or len(value) > CHOICES_MAX:
        return False
    usable = {item for item in value if _is_label(item) or is_number(item)}
    return len(usable) == len(value)


def _is_length(value: object) -> bool:
    return isinstance(value, int) and is_integer(value) and 0 < value <= TEXT_MAX_LENGTH_LIMIT


# field: the types it belongs to, what its value must be, and how to say so.
_Rule = tuple[tuple[str, ...], Callable[[Any], bool], str]
_RULES: dict[str, _Rule] = {
    "required": (TYPES, lambda value: isinstance(value, bool), "Must be true or false."),
    "label": (TYPES, _is_label, "Must be a short text."),
    "placeholder": (TYPES, _is_label, "Must be a short text."),
    "choices": (("choice",), _are_choices, "Must be a list of different texts or numbers."),
    "min": (NUMERIC, is_number, "Must be a finite number."),
    "max": (NUMERIC, is_number, "Must be a finite number."),
    "max_length": (("text",), _is_length, f"Must be from 1 to {TEXT_MAX_LENGTH_LIMIT}."),
    "default": (("text", *NUMERIC, "boolean", "choice"), lambda _: True, ""),
}


def _field_problems(given: dict[str, Any]) -> dict[str, str]:
    """Each field by itself. A field we don't know may be a misspelt limit, so it is refused."""
    problems = {}
    if not isinstance(given.get("name"), str) or not _NAME.fullmatch(given["name"]):
        problems["name"] = "Must start with a letter and hold only a-z, 0-9 and _."
    if given.get("type") not in TYPES:
        return problems | {"type": f"Must be one of {', '.join(TYPES)}."}
    for field in given.keys() - {"name", "type"}:
        if field not in _RULES:
            problems[str(field)[:64]] = "There is no such field."
            continue
        types, is_right, sentence = _RULES[field]
        if given["type"] not in types:
            problems[field] = f"Means nothing for the type {given['type']}."
        elif not is_right(given[field]):
            problems[field] = sentence
    if given["type"] == "choice" and "choices" not in given:
        problems["choices"] = "A choice needs something to choose from."
    return problems


def _limit_problems(prop: Property) -> dict[str, str]:
    """The fields against each other."""
    if prop.min is not None and prop.max is not None and prop.min > prop.max:
        return {"max": "Must not be below min."}
    if not prop.required and prop.default is None:
        hint = "It is always required." if prop.is_media else "Give it a default."
        return {"required": f"The graph needs a value here. {hint}"}
    try:
        if prop.default is not None:
            fit(prop, prop.default)
    except ValueError as unfit:
        return {"default": str(unfit)}
    return {}


def _clashes(prop: Property, earlier: Sequence[Property]) -> dict[str, str]:
    """A placeholder inside another would make the result depend on which is found first."""
    if prop.name == "output_prefix" or any(prop.name == other.name for other in earlier):
        return {"name": "Is taken."}
    for taken in [OUTPUT_PREFIX, *(other.placeholder for other in earlier)]:
        if prop.placeholder in taken or taken in prop.placeholder:
            return {"placeholder": f"Can't be told apart from {taken}."}
    return {}
