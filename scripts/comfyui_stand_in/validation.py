"""Whether a prompt may run, told as ComfyUI tells it.

A prompt is accepted when at least one of its output nodes is valid; the others are reported
next to the acceptance. Values are converted in place to the type an input has. Nodes that no
output leads to are looked at only for their class.
"""

import traceback
from dataclasses import dataclass, field
from typing import Any

from scripts.comfyui_stand_in.folders import Folders
from scripts.comfyui_stand_in.node_classes import (
    CLASSES,
    Graph,
    NodeClass,
    choices_of,
    options_of,
)

Problem = dict[str, Any]
_CONVERSIONS = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}
_LONGEST_LIST = 20


@dataclass(kw_only=True)
class Verdict:
    error: Problem | None
    outputs: list[str] = field(default_factory=list)  # the output nodes that may run
    node_errors: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Checked:
    is_valid: bool
    problems: list[Problem]


def problem(kind: str, message: str, details: str = "", **more: Any) -> Problem:
    return {"type": kind, "message": message, "details": details, "extra_info": more}


def type_name(kind: type[BaseException]) -> str:
    """A class with its module, which builtins go without."""
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def validate(prompt: Graph, folders: Folders) -> Verdict:
    for node_id in prompt:
        if refusal := _class_problem(node_id, prompt[node_id]):
            return Verdict(error=refusal)
    outputs = [node_id for node_id in prompt if CLASSES[prompt[node_id]["class_type"]].is_output]
    if not outputs:
        return Verdict(error=problem("prompt_no_outputs", "Prompt has no outputs"))
    checks = _Checks(prompt, folders)
    good = [node_id for node_id in outputs if checks.output(node_id)]
    if good:
        return Verdict(error=None, outputs=good, node_errors=checks.node_errors)
    failed = problem(
        "prompt_outputs_failed_validation",
        "Prompt outputs failed validation",
        "\n".join(f"{one['message']}: {one['details']}" for one in checks.output_problems),
    )
    return Verdict(error=failed, node_errors=checks.node_errors)


def _class_problem(node_id: str, declared: Any) -> Problem | None:
    if "class_type" not in declared:
        message = "Cannot execute because a node is missing the class_type property."
    elif declared["class_type"] not in CLASSES:
        message = f"Cannot execute because node {declared['class_type']} does not exist."
    else:
        return None
    return problem("invalid_prompt", message, f"Node ID '#{node_id}'")


class _Checks:
    """The checks of one prompt. A node is looked at once, however many outputs need it."""

    def __init__(self, prompt: Graph, folders: Folders) -> None:
        self.prompt = prompt
        self.folders = folders
        self.checked: dict[str, _Checked] = {}
        self.node_errors: dict[str, Any] = {}
        self.output_problems: list[Problem] = []

    def output(self, node_id: str) -> bool:
        try:
            checked = self.node(node_id)
        except Exception as error:  # whatever a hostile graph provokes is the graph's fault
            kind, message = "exception_during_validation", "Exception when validating node"
            checked = _Checked(False, [_exception_problem(kind, message, error)])
            self.checked[node_id] = checked
        if not checked.is_valid:
            self.output_problems += checked.problems
            self._blame_for(node_id)
        return checked.is_valid

    def _blame_for(self, output_id: str) -> None:
        for node_id, checked in self.checked.items():
            if checked.problems:
                blamed = self.node_errors.setdefault(
                    node_id,
                    {
                        "errors": checked.problems,
                        "dependent_outputs": [],
                        "class_type": self.prompt[node_id]["class_type"],
                    },
                )
                blamed["dependent_outputs"].append(output_id)

    def node(self, node_id: str) -> _Checked:
        if node_id in self.checked:
            return self.checked[node_id]
        # Found again on the way to itself: a cycle, invalid without a word about it.
        self.checked[node_id] = _Checked(False, [])
        node_class = CLASSES[self.prompt[node_id]["class_type"]]
        inputs = self.prompt[node_id]["inputs"]
        problems, is_valid = [], True
        for name, declared in node_class.inputs().items():
            if name not in inputs:
                if name in node_class.required:
                    problems.append(_missing(name))
            elif isinstance(inputs[name], list):
                found, upstream_is_valid = self._link_problem(name, inputs[name], declared)
                problems += found
                is_valid = is_valid and upstream_is_valid
            else:
                problems += self._value_problem(node_class, name, inputs, declared)
        self.checked[node_id] = _Checked(is_valid and not problems, problems)
        return self.checked[node_id]

    def _link_problem(
        self, name: str, link: list[Any], declared: list[Any]
    ) -> tuple[list[Problem], bool]:
        more = {"input_name": name, "input_config": declared}
        if len(link) != 2:
            message = "Bad linked input, must be a length-2 list of [node_id, slot_index]"
            return [problem("bad_linked_input", message, name, **more, received_value=link)], True
        source, slot = link
        received = CLASSES[self.prompt[source]["class_type"]].returns[slot]
        wanted = "COMBO" if isinstance(declared[0], list) else declared[0]
        if "*" not in (received, wanted) and received != wanted:
            details = f"{name}, received_type({received}) mismatch input_type({wanted})"
            message = "Return type mismatch between linked nodes"
            more |= {"received_type": received, "linked_node": link}
            return [problem("return_type_mismatch", message, details, **more)], True
        try:
            return [], self.node(source).is_valid
        except Exception as error:  # see output()
            kind = "exception_during_inner_validation"
            found = _exception_problem(kind, "Exception when validating inner node", error)
            found["extra_info"] |= {**more, "exception_message": str(error), "linked_node": link}
            self.checked[source] = _Checked(False, [found])
            return [], False

    def _value_problem(
        self, node_class: NodeClass, name: str, inputs: Graph, declared: list[Any]
    ) -> list[Problem]:
        value = inputs[name]
        more = {"input_name": name, "input_config": declared, "received_value": value}
        if not isinstance(declared[0], list) and declared[0] in _CONVERSIONS:
            try:
                value = inputs[name] = _CONVERSIONS[declared[0]](value)
            except (TypeError, ValueError, OverflowError) as error:
                message = f"Failed to convert an input value to a {declared[0]} value"
                more["exception_message"] = str(error)
                details = f"{name}, {value}, {error}"
                return [problem("invalid_input_type", message, details, **more)]
        if node_class.file and node_class.file.name == name:
            return _file_problem(node_class, name, value, self.folders)
        return _limit_problem(name, value, declared, more)


def _limit_problem(
    name: str, value: Any, declared: list[Any], more: dict[str, Any]
) -> list[Problem]:
    limits, choices = options_of(declared), choices_of(declared)
    if "min" in limits and value < limits["min"]:
        message = f"Value {value} smaller than min of {limits['min']}"
        return [problem("value_smaller_than_min", message, name, **more)]
    if "max" in limits and value > limits["max"]:
        message = f"Value {value} bigger than max of {limits['max']}"
        return [problem("value_bigger_than_max", message, name, **more)]
    if choices is not None and value not in choices:
        shown = str(choices)
        if len(choices) > _LONGEST_LIST:
            shown, more["input_config"] = f"(list of length {len(choices)})", None
        details = f"{name}: '{value}' not in {shown}"
        return [problem("value_not_in_list", "Value not in list", details, **more)]
    return []


def _file_problem(node_class: NodeClass, name: str, value: Any, folders: Folders) -> list[Problem]:
    if folders.readable(value).exists():
        return []
    kind = node_class.name.removeprefix("Load").lower()
    details = f"{name} - Invalid {kind} file: {value}"
    message = "Custom validation failed for node"
    return [problem("custom_validation_failed", message, details, input_name=name)]


def _missing(name: str) -> Problem:
    return problem("required_input_missing", "Required input is missing", name, input_name=name)


def _exception_problem(kind: str, message: str, error: Exception) -> Problem:
    return problem(
        kind,
        message,
        str(error),
        exception_type=type_name(type(error)),
        traceback=traceback.format_tb(error.__traceback__),
    )
