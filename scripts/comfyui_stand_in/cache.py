"""What nodes gave in the prompts before, so that an unchanged node need not run again.

Only nodes of the last prompt are kept. Two nodes are the same when their class, their inputs
and all that leads to them are, and the files they read.
"""

import json
import uuid
from typing import Any

from scripts.comfyui_stand_in.folders import Folders, fingerprint
from scripts.comfyui_stand_in.node_classes import CLASSES, Graph, Result


class Cache:
    def __init__(self, folders: Folders) -> None:
        self.folders = folders
        self.results: dict[str, Result] = {}
        self.signatures: dict[str, str] = {}

    def begin(self, prompt: Graph) -> None:
        """Forget what this prompt does not have.

        A node without a dict of inputs raises here, on the thread that runs prompts, and
        nobody catches it: so did the real one.
        """
        changes = {node_id: self._change(prompt[node_id]) for node_id in prompt}
        self.signatures = {node_id: _signature(prompt, node_id, changes) for node_id in prompt}
        kept = set(self.signatures.values())
        self.results = {key: result for key, result in self.results.items() if key in kept}

    def get(self, node_id: str) -> Result | None:
        return self.results.get(self.signatures.get(node_id, ""))

    def put(self, node_id: str, result: Result) -> None:
        self.results[self.signatures[node_id]] = result

    def clear(self) -> None:
        self.results = {}

    def _change(self, node: dict[str, Any]) -> str:
        """What tells the file a node reads from another of the same name."""
        file = CLASSES[node["class_type"]].file
        name = node["inputs"].get(file.name) if file else None
        if not isinstance(name, str):
            return ""
        try:
            return fingerprint(self.folders.readable(name))
        except OSError:
            return uuid.uuid4().hex  # equal to nothing: the node has to run, and to fail


def _signature(prompt: Graph, node_id: str, changes: dict[str, str]) -> str:
    """A text that names the node and all before it. Links are told by place, not by node id."""
    ancestors: dict[str, int] = {}
    waiting = [node_id]
    parts: list[Any] = []
    while waiting:
        current = waiting.pop()
        if current in ancestors:
            continue
        ancestors[current] = len(ancestors)
        if current in prompt:
            waiting += [link[0] for link in links(prompt[current]["inputs"])]
    for current in ancestors:
        if current not in prompt:
            parts.append(uuid.uuid4().hex)
            continue
        inputs = {
            name: ["from", ancestors[value[0]], value[1]] if is_link(value) else value
            for name, value in sorted(prompt[current]["inputs"].items())
        }
        parts.append([prompt[current]["class_type"], changes[current], inputs])
    return json.dumps(parts)


def is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def links(inputs: dict[str, Any]) -> list[Any]:
    return [value for value in inputs.values() if is_link(value)]
