"""What ComfyUI's failures mean: a sentence for the user, a trace for the operators, and
whether another machine might do better.

A user reads one line without paths: where files lie on our machines is nobody's business,
and the names under which we uploaded them mean nothing to anybody.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_worker.graph import INVALID
from gpu_worker.provider import JobFailed, Unwell

_SENTENCE_MAX_CHARACTERS = 300
_TRACE_MAX_CHARACTERS = 20_000
_FAULTS_TOLD = 3

_OUT_OF_MEMORY = re.compile(
    r"out ?of ?memory|MemoryError|Allocation on device|not enough memory"
    r"|can(?:'t|not) allocate memory",  # the machine's own, not the GPU's
    re.I,
)
_QUOTED_PATH = re.compile(r"""(['"])[^'"\n]*[/\\]([^'"/\\\n]*)\1""")
_FULL_PATH = re.compile(
    r"(?<![\w/\\.])(?:[A-Za-z]:|~|\.{1,2})?[/\\](?:[^\s'\"/\\]+[/\\])*([^\s'\"/\\]*)"
)
_RELATIVE_PATH = re.compile(r"(?<![\w/\\.])(?:[\w.-]+[/\\])+([\w-]+\.\w{1,12})\b")
_TRACEBACK_LINE = re.compile(r"^\s*(Traceback \(most recent call last\)|File \"|\^+\s*$)")

Names = Mapping[str, str]  # of uploaded files: ComfyUI's name for it -> the user's


def failure_of(entry: Mapping[str, Any], *, names: Names) -> JobFailed | Unwell | None:
    """Why a prompt that has ended did not succeed. None: it did.

    Read before the outputs: a failed run may have some, of the nodes that came first.
    """
    status = _object(entry.get("status"))
    if status.get("status_str") == "success":
        return None
    events = dict(_events(status))
    if error := events.get("execution_error"):
        return execution_failure(error, names=names)
    if "execution_interrupted" in events:
        return Unwell("Somebody else interrupted the run.", trace=_trace(status))
    return Unwell("ComfyUI ended the run without saying why.", trace=_trace(status))


def execution_failure(error: Mapping[str, Any], *, names: Names) -> JobFailed | Unwell:
    node = str(error.get("node_type") or "A node")
    told = f"{error.get('exception_type')}: {error.get('exception_message')}"
    trace = _execution_trace(error, told)
    if _OUT_OF_MEMORY.search(told):
        return Unwell(f"out_of_memory: {node} needs more memory than there is.", trace=trace)
    reason = sentence(str(error.get("exception_message") or ""), names=names)
    message = f"{node} failed: {reason}" if reason else f"{node} failed."
    return JobFailed(message, code="execution_failed", trace=trace)


def refusal(status: int, body: str, *, names: Names) -> JobFailed | Unwell:
    """What a 4xx answer to a prompt means."""
    if status == 413:
        return JobFailed("The workflow is too large for ComfyUI.", code=INVALID, trace=body)
    try:
        answer = _object(json.loads(body))
    except ValueError:
        answer = {}
    if status != 400 or "error" not in answer:
        return Unwell(f"ComfyUI answered {status} to a prompt.", trace=body[:_TRACE_MAX_CHARACTERS])
    faults = list(_node_faults(answer.get("node_errors")))
    error = _object(answer["error"])
    if not faults or error.get("type") != "prompt_outputs_failed_validation":
        faults = [_fault(error), *faults]
    return _invalid(faults, answer, names=names)


def partial_acceptance(node_errors: Mapping[str, Any], *, names: Names) -> JobFailed:
    """ComfyUI would run a part of the graph and call that a success."""
    return _invalid(list(_node_faults(node_errors)), node_errors, names=names)


def sentence(text: str, *, names: Names) -> str:
    """The line that tells most, without paths, in the user's own file names."""
    lines = [line.strip(" *\t") for line in text.splitlines() if not _TRACEBACK_LINE.match(line)]
    lines = [line for line in lines if line]
    if not lines:
        return ""
    line = lines[-1] if "Traceback (most recent call last)" in text else lines[0]
    line = _QUOTED_PATH.sub(r"\1\2\1", line)
    line = _FULL_PATH.sub(r"\1", line)
    line = _RELATIVE_PATH.sub(r"\1", line)
    for given, own in names.items():
        line = line.replace(given, own)
    line = "".join(character for character in line if character.isprintable())
    return line.removeprefix("ERROR: ")[:_SENTENCE_MAX_CHARACTERS]


def _invalid(faults: list[str], answer: object, *, names: Names) -> JobFailed:
    told = "; ".join(filter(None, (sentence(f, names=names) for f in faults[:_FAULTS_TOLD])))
    return JobFailed(
        f"ComfyUI refused the workflow: {told or 'it does not say why'}.",
        code=INVALID,
        trace=_trace(answer),
    )


def _node_faults(node_errors: object) -> Iterator[str]:
    for node_id, node in _object(node_errors).items():
        about = f"{_object(node).get('class_type') or 'node'} ({node_id})"
        errors = _object(node).get("errors")
        for error in errors if isinstance(errors, list) else []:
            yield f"{about}: {_fault(_object(error))}"


def _fault(error: Mapping[str, Any]) -> str:
    message, details = str(error.get("message") or ""), str(error.get("details") or "")
    message = message.rstrip(".")
    return f"{message}: {details}" if details and details != message else message


def _events(status: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    messages = status.get("messages")
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, list) and len(message) == 2:
            yield str(message[0]), _object(message[1])


def _execution_trace(error: Mapping[str, Any], told: str) -> str:
    where = f"node {error.get('node_id')} ({error.get('node_type')})"
    lines = error.get("traceback")
    frames = "".join(map(str, lines)) if isinstance(lines, list) else ""
    return f"{told.strip()}\nat {where}\n{frames}"[:_TRACE_MAX_CHARACTERS]


def _trace(answer: object) -> str:
    return json.dumps(answer, ensure_ascii=False)[:_TRACE_MAX_CHARACTERS]


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
