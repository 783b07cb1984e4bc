"""Failures taken apart, on what a real ComfyUI answered."""

import json
from typing import Any

import pytest

from gpu_worker import comfyui_errors
from gpu_worker.provider import JobFailed, Unwell


def entry(*events: tuple[str, dict[str, Any]], status: str = "error") -> dict[str, Any]:
    messages = [["execution_start", {}], *([kind, content] for kind, content in events)]
    return {"status": {"status_str": status, "completed": False, "messages": messages}}


def execution_error(message: str, kind: str = "RuntimeError") -> dict[str, Any]:
    return {
        "node_id": "1",
        "node_type": "LoadImage",
        "exception_message": message,
        "exception_type": kind,
        "traceback": ['  File "/opt/comfyui/nodes.py", line 1660, in load_image\n'],
    }


def test_a_success_is_no_failure() -> None:
    assert comfyui_errors.failure_of(entry(status="success"), names={}) is None


def test_a_user_reads_a_sentence_and_operators_the_trace() -> None:
    error = execution_error(
        "cannot identify image file '/srv/comfyui/input/8f3a.png'\n", "PIL.UnidentifiedImageError"
    )
    failure = comfyui_errors.failure_of(
        entry(("execution_error", error)), names={"8f3a.png": "My cat.png"}
    )
    assert isinstance(failure, JobFailed)
    assert failure.message == "LoadImage failed: cannot identify image file 'My cat.png'"
    assert failure.code == "execution_failed"
    assert "PIL.UnidentifiedImageError" in failure.trace
    assert "/opt/comfyui/nodes.py" in failure.trace


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Allocation on device 0 would exceed allowed memory. (out of memory)", "RuntimeError"),
        ("Allocation on device", "torch.OutOfMemoryError"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "torch.cuda.OutOfMemoryError"),
        ("", "MemoryError"),
    ],
)
def test_out_of_memory_may_be_cured_elsewhere(message: str, kind: str) -> None:
    failure = comfyui_errors.execution_failure(execution_error(message, kind), names={})
    assert isinstance(failure, Unwell)
    assert failure.message.startswith("out_of_memory: LoadImage")
    assert kind in failure.trace


def test_item_7_an_interrupt_looks_like_an_error_and_is_told_apart() -> None:
    failure = comfyui_errors.failure_of(
        entry(("execution_interrupted", {"node_id": "3", "node_type": "ImageBlur"})), names={}
    )
    assert isinstance(failure, Unwell)
    assert "interrupted" in failure.message


def test_an_end_without_a_reason_is_not_the_jobs_fault() -> None:
    for broken in (entry(), {}, {"status": None}, {"status": {"messages": [[1], "x", None]}}):
        assert isinstance(comfyui_errors.failure_of(broken, names={}), Unwell)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n  \n", ""),
        ("size (31, 31) of [1, 3, 4, 4] and/or 1/2\n", "size (31, 31) of [1, 3, 4, 4] and/or 1/2"),
        ("No such file: /srv/my/models/a.safetensors.", "No such file: a.safetensors."),
        ("can't open '/srv/my comfy/in put/a b.png' now", "can't open 'a b.png' now"),
        ("in C:\\Users\\me\\a.png", "in a.png"),
        ("in models/loras/x.safetensors twice", "in x.safetensors twice"),
        ("~/secret/place", "place"),
        ("../../evil", "evil"),
        (
            "**** ERROR: Saving outside is not allowed.\n full: /srv/x",
            "Saving outside is not allowed.",
        ),
        (
            "Traceback (most recent call last):\n  File \"/a.py\", line 3\n    x()\nKeyError: 'k'",
            "KeyError: 'k'",
        ),
        ("bell\x07 and \u202e mark", "bell and  mark"),
        ("x" * 400, "x" * 300),
    ],
)
def test_a_sentence_has_no_paths_and_no_tracebacks(text: str, line: str) -> None:
    assert comfyui_errors.sentence(text, names={}) == line


NODE_ERRORS = {
    "1": {
        "errors": [
            {
                "type": "value_bigger_than_max",
                "message": "Value 99999 bigger than max of 16384",
                "details": "width",
            }
        ],
        "dependent_outputs": ["2"],
        "class_type": "EmptyImage",
    }
}
FAILED_VALIDATION = {
    "type": "prompt_outputs_failed_validation",
    "message": "Prompt outputs failed validation",
    "details": "",
}


@pytest.mark.parametrize(
    ("error", "node_errors", "message"),
    [
        (
            FAILED_VALIDATION,
            NODE_ERRORS,
            "EmptyImage (1): Value 99999 bigger than max of 16384: width",
        ),
        (
            {
                "type": "invalid_prompt",
                "message": "Cannot execute because node NoSuchNode does not exist.",
                "details": "Node ID '#99'",
            },
            {},
            "Cannot execute because node NoSuchNode does not exist: Node ID '#99'",
        ),
        (FAILED_VALIDATION, {}, "Prompt outputs failed validation"),  # a cycle
        ("no object", [], "it does not say why"),
    ],
)
def test_a_refused_graph_is_explained(error: Any, node_errors: Any, message: str) -> None:
    body = json.dumps({"error": error, "node_errors": node_errors})
    failure = comfyui_errors.refusal(400, body, names={})
    assert isinstance(failure, JobFailed)
    assert failure.message == f"ComfyUI refused the workflow: {message}."
    assert failure.code == "invalid_workflow"
    assert json.loads(failure.trace)["node_errors"] == node_errors


def test_other_refusals_are_not_the_jobs_fault() -> None:
    for status, body in ((403, ""), (401, "{}"), (404, "<html>"), (400, "[]"), (400, "no json")):
        assert isinstance(comfyui_errors.refusal(status, body, names={}), Unwell)
    too_large = comfyui_errors.refusal(413, "too large", names={})
    assert isinstance(too_large, JobFailed)


def test_item_3_partial_acceptance_is_a_failure() -> None:
    failure = comfyui_errors.partial_acceptance(NODE_ERRORS, names={})
    assert failure.code == "invalid_workflow"
    assert "EmptyImage (1)" in failure.message
