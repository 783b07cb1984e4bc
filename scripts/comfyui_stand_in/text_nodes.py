"""Nodes for text."""

import json
from typing import Any

from scripts.comfyui_stand_in.node_classes import Result, Work, node


@node(
    "PreviewAny",
    required={"source": ["*", {}]},
    is_output=True,
    title="Preview as Text",
    category="utils",
    module="comfy_extras.nodes_preview_any",
)
def preview_any(work: Work, *, source: Any) -> Result:  # noqa: ARG001
    text = source if isinstance(source, str) else json.dumps(source, default=str)
    return Result(ui={"text": [text]})


@node(
    "PrimitiveString",
    required={"value": ["STRING", {"multiline": False}]},
    returns=("STRING",),
    title="String",
    category="utils/primitive",
    module="comfy_extras.nodes_primitive",
    is_new_style=True,
)
def primitive_string(work: Work, *, value: str) -> Result:  # noqa: ARG001
    return Result(values=(value,))
