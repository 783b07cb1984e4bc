"""Which graphs a workflow may have. Checked once, when the workflow is uploaded.

A graph that passed can be rendered with any values that fit its properties: the result is a
graph of known size that ComfyUI can read, with every link intact and no file of a user's choosing.
(It can still fail when it runs; what the nodes make of their inputs is ComfyUI's to say.)

ComfyUI opens whatever path a media loader is given, anywhere on its disk. So such a loader takes
the placeholder of a media property or a plain name in the input folder, written there and not
linked: another node could make a path of a text. Models lie in folders, and may be named with them.
"""

import json
import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from models.errors import InvalidInput
from models.payload import Graph, may_be_link, placeholder_pattern
from models.properties import OUTPUT_PREFIX, UNSTORABLE, Problems, Property, is_number, refuse_if

NODES_MAX = 2_000
DEPTH_MAX = 32
SIZE_MAX_BYTES = 4_000_000
# Characters that users' texts may add: a placeholder used in many places multiplies its text.
FILLING_MAX_CHARACTERS = 16_000_000
NAME_MAX_CHARACTERS = 200  # of a node's id, of its type
PROBLEMS_REPORTED = 100

# Bounded, so that a long run of braces is read in linear time.
_LOOKS_LIKE_PLACEHOLDER = re.compile(r"\{\{[^{}]{0,200}\}\}")
_FILE_FIELD = re.compile(
    r"(^|_)(file|files|filename|path|paths|dir|directory|folder|subfolder)(_|$)"
)
# "name [output]" is ComfyUI's way to read from another folder: other jobs' results.
_LEAVES_THE_INPUT_FOLDER = re.compile(
    r"^\s*([/\\~]|[a-z]:|file:|[a-z][a-z0-9+.-]*://)|\.\.|\[(output|temp)\]\s*$", re.I
)
_MEDIA_LOADER = re.compile(r"load_?(image|video|audio|mask|latent|3d|mesh)", re.I)
_MEDIA_FIELD = re.compile(r"(^|_)(images?|videos?|audios?|masks?|latents?|mesh)(_|$)")
_PATH = re.compile(r"[/\\]")


def check_graph(
    graph: object,
    properties: Sequence[Property],
    output_node_id: str | None,
    *,
    allowed_nodes: Container[str] | None = None,
) -> None:
    """InvalidInput, with every fault under `graph.<node>.inputs.<field>`, or nothing."""
    checked = _require_small_json(graph)
    inspection = _Inspection(checked, properties, allowed_nodes)
    for node_id, node in checked.items():
        inspection.visit_node(node_id, node)
    if output_node_id is not None and output_node_id not in checked:
        inspection.report("output_node_id", "The graph has no such node.")
    inspection.visit_whole()
    refuse_if(inspection.problems, "The graph can't be used as it is.")


def _require_small_json(graph: object) -> Graph:
    """Refused at once when too large or deep: everything after this walks the whole graph."""
    if not isinstance(graph, dict) or not 0 < len(graph) <= NODES_MAX:
        raise InvalidInput.field("graph", f"Must be an object of 1 to {NODES_MAX} nodes.")
    if isinstance(graph.get("nodes"), list):
        raise InvalidInput.field("graph", "This is the editor's format. Export it as API format.")
    pending: list[tuple[Any, int]] = [(graph, 1)]
    while pending:  # not recursive, because a deep graph is one of the things to refuse
        value, depth = pending.pop()
        if depth > DEPTH_MAX:
            raise InvalidInput.field("graph", f"Must be nested at most {DEPTH_MAX} levels deep.")
        if isinstance(value, dict | list):
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            pending += ((item, depth + 1) for item in inner)
        elif isinstance(value, str):
            if UNSTORABLE.search(value):
                raise InvalidInput.field("graph", "Must not hold NUL or broken Unicode.")
        elif not (value is None or isinstance(value, bool) or is_number(value)):
            raise InvalidInput.field("graph", "Must hold finite numbers of at most 64 bits.")
    if len(json.dumps(graph, ensure_ascii=False).encode()) > SIZE_MAX_BYTES:
        raise InvalidInput.field("graph", f"Must have at most {SIZE_MAX_BYTES} bytes.")
    return graph


@dataclass
class _Inspection:
    """One graph under inspection: what was found wrong, and what is known so far."""

    graph: Graph
    properties: Sequence[Property]
    allowed_nodes: Container[str] | None
    problems: Problems = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    links: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_placeholder = {prop.placeholder: prop for prop in self.properties}
        self.pattern = placeholder_pattern([OUTPUT_PREFIX, *self.by_placeholder])

    def report(self, where: str, sentence: str) -> None:
        if where not in self.problems and len(self.problems) == PROBLEMS_REPORTED:
            return  # enough to work on: the answer shall not be as long as the graph
        sentences = self.problems.setdefault(where, [])
        if sentence not in sentences:
            sentences.append(sentence)

    def visit_node(self, node_id: str, node: object) -> None:
        where = f"graph.{node_id[:NAME_MAX_CHARACTERS]}"
        if not 0 < len(node_id) <= NAME_MAX_CHARACTERS:
            return self.report(where, f"Its id must have 1 to {NAME_MAX_CHARACTERS} characters.")
        if not isinstance(node, dict):
            return self.report(where, "Must be an object.")
        class_type, inputs = node.get("class_type"), node.get("inputs")
        if not isinstance(class_type, str) or not 0 < len(class_type) <= NAME_MAX_CHARACTERS:
            return self.report(f"{where}.class_type", "Must name the node's type.")
        if self.pattern.search(class_type):
            self.report(f"{where}.class_type", "Must not depend on a property.")
        if self.allowed_nodes is not None and class_type not in self.allowed_nodes:
            self.report(f"{where}.class_type", "This type of node is not allowed here.")
        if not isinstance(inputs, dict):
            # ComfyUI accepts such a node and then dies of it, with every later job waiting.
            return self.report(f"{where}.inputs", "Must be an object, even if empty.")
        for name, value in inputs.items():
            spot = f"{where}.inputs.{name[:NAME_MAX_CHARACTERS]}"
            file = _File.named_by(class_type, name)
            self._visit_link(spot, node_id, value, file)
            for text, in_pair in _strings(value):
                self._visit_text(spot, text, in_pair=in_pair, file=file)

    def visit_whole(self) -> None:
        """What can only be said once every node was seen."""
        for index, prop in enumerate(self.properties):
            if not self.uses[prop.placeholder]:
                where = f"properties.{index}.placeholder"
                self.report(where, f"{prop.placeholder} is in no input of the graph.")
        added = sum(self.uses[p.placeholder] * (p.max_length or 0) for p in self.properties)
        if added > FILLING_MAX_CHARACTERS:
            self.report("graph", "Filled with the longest texts allowed it would be too large.")
        try:
            TopologicalSorter(self.links).prepare()
        except CycleError:
            self.report("graph", "The links go round in a circle.")

    def _visit_link(self, spot: str, node_id: str, value: object, file: "_File") -> None:
        if not isinstance(value, list) or len(value) != 2:
            return
        source, output = value
        if isinstance(output, bool) or not isinstance(output, int | float):
            return  # a pair of texts is a value
        if file.is_its_name:
            self.report(spot, "The name of a file must stand here, not come from another node.")
        if not isinstance(source, str) or not isinstance(output, int) or output < 0:
            self.report(spot, "A link is a node's id as text and the number of its output.")
        elif source not in self.graph:
            self.report(spot, "Links to a node that does not exist.")
        else:
            self.links.setdefault(node_id, set()).add(source)

    def _visit_text(self, spot: str, text: str, *, in_pair: bool, file: "_File") -> None:
        found = self.pattern.findall(text)
        written = self.pattern.sub("\0", text)  # what stays whatever the values are
        self.uses.update(found)
        if found and in_pair:
            self.report(spot, "A placeholder can't stand in a list of two: it might become a link.")
        if _LOOKS_LIKE_PLACEHOLDER.search(written):
            self.report(spot, "Holds a placeholder that no property has.")
        if sentence := file.refusal_of(written):
            self.report(spot, sentence)
        for prop in (self.by_placeholder[p] for p in found if p in self.by_placeholder):
            self._visit_placeholder(spot, prop, is_whole=text == prop.placeholder, file=file)

    def _visit_placeholder(
        self, spot: str, prop: Property, *, is_whole: bool, file: "_File"
    ) -> None:
        if prop.is_media and not is_whole:
            self.report(
                spot, f"{prop.placeholder} must be the whole value: it becomes a file name."
            )
        if prop.is_media or not file.may_be_named:
            return
        if prop.type == "text":
            self.report(spot, "A user's text can't name a file.")
        if prop.choices and not is_whole:
            self.report(spot, f"{prop.placeholder} must be the whole value: it names a file.")
        for choice in prop.choices or ():
            if sentence := file.refusal_of(str(choice)):
                self.report(spot, f"Each choice: {sentence}")


@dataclass(frozen=True)
class _File:
    """What an input has to do with files."""

    may_be_named: bool  # by a text in this input
    is_its_name: bool  # that is what the input is for
    is_media: bool

    @classmethod
    def named_by(cls, class_type: str, input_name: str) -> "_File":
        name = input_name.lower()
        is_media = bool(_MEDIA_LOADER.search(class_type))
        is_name = bool(_FILE_FIELD.search(name)) or (is_media and bool(_MEDIA_FIELD.search(name)))
        return cls(is_name or "load" in class_type.lower(), is_name, is_media)

    def refusal_of(self, written: str) -> str | None:
        if self.is_media and _PATH.search(written):
            return "Must be a plain name in the input folder, or a media placeholder."
        if self.may_be_named and _LEAVES_THE_INPUT_FOLDER.search(written):
            return "Must name a file inside the input folder."
        return None


def _strings(value: Any, *, in_pair: bool = False) -> Iterator[tuple[str, bool]]:
    """Every string inside, and whether it stands in a list of two."""
    if isinstance(value, str):
        yield value, in_pair
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, in_pair=may_be_link(value))
