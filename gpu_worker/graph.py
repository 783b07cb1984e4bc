"""Graphs, before and while they run. Nothing here talks to anybody.

A file enters the parsed graph, never its text, and only inside the nodes' `inputs`: whatever
a file is called, links and node types stay what the workflow's author wrote.

Progress is the share of nodes done, and it never goes back. Nodes weigh very differently,
so it says that something moves, not how long it will take.
"""

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from gpu_worker.outputs import ENDINGS
from gpu_worker.provider import Asset, JobFailed

Graph = dict[str, Any]

_NAME_CHARACTERS = 32
INVALID = "invalid_workflow"  # the code of a graph that can't run anywhere


def require_runnable(graph: Graph, *, output_node_id: str | None = None) -> None:
    """One node without `inputs` would end ComfyUI's only prompt thread, for all later prompts."""
    for node_id, node in graph.items():
        if not isinstance(node, dict) or not isinstance(node.get("inputs"), dict):
            raise JobFailed(f"Node {node_id} of the workflow has no inputs.", code=INVALID)
        if not isinstance(node.get("class_type"), str):
            raise JobFailed(f"Node {node_id} of the workflow has no type.", code=INVALID)
    if output_node_id is not None and output_node_id not in graph:
        raise JobFailed(f"The workflow has no node {output_node_id} for its result.", code=INVALID)


def canary() -> Graph:
    """The simplest that shows whether anything runs."""
    size = {"width": 16, "height": 16, "batch_size": 1}
    colour = random.randrange(1 << 24)  # noqa: S311 - never one that the cache has
    return {
        "1": {"class_type": "EmptyImage", "inputs": {**size, "color": colour}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }


def name_for(asset: Asset) -> str:
    """By content, so that ComfyUI stores a file that it has already only once."""
    stem = re.sub(r"[^A-Za-z0-9]", "", asset.content_hash)[:_NAME_CHARACTERS] or uuid4().hex
    own = re.sub(r"[^a-z0-9]", "", asset.filename.rpartition(".")[2].lower())[:8]
    return f"{stem}.{ENDINGS.get(asset.mime_type) or own or 'bin'}"


def fill(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with every input that equals a placeholder replaced. The given one is kept."""
    return {
        node_id: {**node, "inputs": {k: _fill(v, names) for k, v in node["inputs"].items()}}
        for node_id, node in graph.items()
    }


def _fill(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):
        return {key: _fill(item, names) for key, item in value.items()}
    if isinstance(value, list) and not _is_link(value):
        return [_fill(item, names) for item in value]
    return value


def _is_link(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], int)
    )


def reachable(graph: Graph) -> set[str]:
    """The nodes that a run visits: those that nobody feeds on, and all that feed them.

    Which of the last nodes are outputs is known to ComfyUI alone. A loose end that is none
    counts here and never runs, so a run may end before its progress reaches 1.
    """
    sources = {
        node_id: set(_links(node["inputs"])) & graph.keys() for node_id, node in graph.items()
    }
    feeding = set[str]().union(*sources.values())
    waiting = [node_id for node_id in graph if node_id not in feeding]
    found = set[str]()
    while waiting:
        node_id = waiting.pop()
        if node_id not in found:
            found.add(node_id)
            waiting.extend(sources[node_id])
    return found


def _links(inputs: Mapping[str, Any]) -> Iterator[str]:
    return (value[0] for value in inputs.values() if _is_link(value))


class Meter:
    """What the messages of one prompt say about how far it is."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.shares = dict.fromkeys(reachable(graph), 0.0)
        self.share = 0.0
        self.node: str | None = None  # the class of the node at work

    def read(self, kind: str, content: Mapping[str, Any]) -> None:
        if kind == "execution_cached":
            for node_id in _items(content.get("nodes")):
                self._note(node_id, 1.0)
        elif kind == "progress_state":
            for node_id, state in _pairs(content.get("nodes")):
                self._note(node_id, _share(state))
        elif kind == "progress":
            self._note(content.get("node"), _share(content))
        elif kind == "executed":
            self._note(content.get("node"), 1.0)
        elif kind == "executing":
            self._begin(content)
        done = sum(self.shares.values()) / max(len(self.shares), 1)
        self.share = min(max(self.share, done), 1.0)

    def _note(self, node_id: object, share: float) -> None:
        # Nodes that others expand into while they run are not in the graph we sent.
        if isinstance(node_id, str) and node_id in self.shares:
            self.shares[node_id] = max(self.shares[node_id], share)

    def _begin(self, content: Mapping[str, Any]) -> None:
        for name in ("display_node", "node"):
            node = self.graph.get(str(content.get(name)))
            if node is not None:
                self.node = node["class_type"]
                return


def _share(state: object) -> float:
    if not isinstance(state, Mapping):
        return 0.0
    value, most = state.get("value"), state.get("max")
    if not isinstance(value, int | float) or not isinstance(most, int | float) or most <= 0:
        return 0.0
    return min(max(value / most, 0.0), 1.0)


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _pairs(value: object) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else []
