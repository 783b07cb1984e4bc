"""Nodes that a real ComfyUI does not have, to try out what a client has to live with."""

import json
import time
from typing import Any

from PIL import Image

from scripts.comfyui_stand_in.node_classes import Images, Result, Work, node

_TICK_SECONDS = 0.1
_MODULE = "custom_nodes.comfyfleet_trials"


@node(
    "SlowImage",
    required={
        "image": ["IMAGE"],
        "seconds": ["FLOAT", {"default": 10.0, "min": 0.0, "max": 86400.0}],
    },
    returns=("IMAGE",),
    category="trials",
    module=_MODULE,
)
def slow_image(work: Work, *, image: Images, seconds: float) -> Result:
    """Hands the image on after so long, and reports its progress meanwhile."""
    ticks = max(1, round(seconds / _TICK_SECONDS))
    for tick in range(ticks):
        work.report(tick, ticks)
        time.sleep(seconds / ticks)
    work.report(ticks, ticks)
    return Result(values=(image,))


@node(
    "HangForever",
    required={},
    returns=("IMAGE",),
    is_output=True,
    category="trials",
    module=_MODULE,
)
def hang_forever(work: Work) -> Result:  # noqa: ARG001
    """Never ends, never reports, can't be interrupted: only ending the process helps."""
    while True:
        time.sleep(60)


@node(
    "EmitOutputs",
    required={"ui": ["STRING", {"multiline": True}]},
    is_output=True,
    category="trials",
    module=_MODULE,
)
def emit_outputs(work: Work, *, ui: str) -> Result:
    """Returns any outputs at all. Items that name a file get a small real one."""
    outputs: dict[str, Any] = json.loads(ui)
    for items in outputs.values():
        for item in items if isinstance(items, list) else []:
            if isinstance(item, dict) and item.get("filename"):
                _write_small_file(work, item)
    return Result(ui=outputs)


def _write_small_file(work: Work, item: dict[str, Any]) -> None:
    folder = work.folders.of(item.setdefault("type", "output"))
    if folder is None:
        return
    path = (folder / item.setdefault("subfolder", "") / item["filename"]).resolve()
    if not path.is_relative_to(folder):
        return  # a hostile name is only told, not written
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".png", ".jpg", ".jpeg", ".webp", ".gif"):
        Image.new("RGB", (8, 8), (200, 30, 30)).save(path)
    else:
        path.write_bytes(b"A small file of EmitOutputs.\n")
