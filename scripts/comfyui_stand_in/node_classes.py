"""What a node class is: what it takes and gives, and the function that runs it.

Inputs are declared as /object_info shows them: a name and [type, options]. Every module of
nodes adds its own to CLASSES when it is imported.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from PIL import Image

from scripts.comfyui_stand_in.folders import Folders

Graph = dict[str, Any]
Ui = dict[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class Images:
    """An IMAGE: pictures in RGB, all of one size.

    Those of a film are made anew each time they are read, because it need not fit into memory.
    """

    read: Callable[[], Iterable[Image.Image]]
    count: int
    is_film: bool = False

    @classmethod
    def of(cls, pictures: list[Image.Image]) -> "Images":
        return cls(read=lambda: pictures, count=len(pictures))

    @property
    def size(self) -> tuple[int, int]:
        return next(iter(self.read())).size

    def each(self, edit: Callable[[Image.Image], Image.Image]) -> "Images":
        if self.is_film:
            return replace(self, read=lambda: map(edit, self.read()))
        return Images.of([edit(picture) for picture in self.read()])

    def __str__(self) -> str:
        width, height = self.size
        return f"tensor(shape=[{self.count}, {height}, {width}, 3])"


class Interrupted(Exception):
    """Somebody asked to stop. Seen at the next node or at the next report of progress."""


class Report(Protocol):
    def __call__(self, value: int, maximum: int, preview: Image.Image | None = None) -> None:
        """Say how far the node is. Raises Interrupted when it shall stop."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a running node may use besides its inputs."""

    folders: Folders
    prompt: Graph
    extra_pnginfo: Any
    report: Report


@dataclass(frozen=True, kw_only=True)
class Result:
    values: tuple[Any, ...] = ()
    ui: Ui | None = None


@dataclass(frozen=True, kw_only=True)
class FileInput:
    """An input that names a file of the input folder."""

    name: str
    kinds: tuple[str, ...]  # the first half of the MIME types it offers for choice


@dataclass(frozen=True, kw_only=True)
class NodeClass:
    name: str
    run: Callable[..., Result]
    required: Mapping[str, list[Any]]
    optional: Mapping[str, list[Any]] = field(default_factory=dict)
    hidden: Mapping[str, str] = field(default_factory=dict)
    returns: tuple[str, ...] = ()
    is_output: bool = False
    file: FileInput | None = None
    title: str = ""
    description: str = ""
    category: str = "image"
    module: str = "nodes"
    is_new_style: bool = False  # declared the newer way, which shows in /object_info

    def inputs(self) -> dict[str, list[Any]]:
        return {**self.required, **self.optional}


CLASSES: dict[str, NodeClass] = {}

#: What nodes that save images are told besides their inputs.
HIDDEN = {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"}


def node(name: str, **declared: Any) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    def add(run: Callable[..., Result]) -> Callable[..., Result]:
        CLASSES[name] = NodeClass(name=name, run=run, **declared)
        return run

    return add


def options_of(declared: list[Any]) -> dict[str, Any]:
    return declared[1] if len(declared) > 1 else {}


def choices_of(declared: list[Any]) -> list[Any] | None:
    """The values to choose from, of either way to declare a choice."""
    if isinstance(declared[0], list):
        return declared[0]
    if declared[0] == "COMBO":
        return list(options_of(declared)["options"])
    return None


def described(node_class: NodeClass, folders: Folders) -> dict[str, Any]:
    """A node class as /object_info answers it."""
    groups: dict[str, dict[str, Any]] = {"required": dict(node_class.required)}
    if node_class.file:
        groups["required"][node_class.file.name] = _file_choice(node_class, folders)
    if node_class.optional:
        groups["optional"] = dict(node_class.optional)
    if node_class.hidden:
        groups["hidden"] = dict(node_class.hidden)
    outputs = list(node_class.returns)
    newer = {"output_tooltips": [None] * len(outputs), "output_matchtypes": None}
    flags = {"deprecated": False, "experimental": False, "api_node": False}
    return {
        "input": groups,
        "input_order": {group: list(inputs) for group, inputs in groups.items()},
        "output": outputs,
        "output_is_list": [False] * len(outputs),
        "output_name": outputs,
        **(newer if node_class.is_new_style else {}),
        "name": node_class.name,
        "display_name": node_class.title or node_class.name,
        "description": node_class.description,
        "python_module": node_class.module,
        "category": node_class.category,
        "output_node": node_class.is_output,
        **(flags if node_class.is_new_style else {}),
    }


def _file_choice(node_class: NodeClass, folders: Folders) -> list[Any]:
    assert node_class.file  # noqa: S101 - the caller looked
    declared = node_class.required[node_class.file.name]
    names = folders.input_files(node_class.file.kinds)
    if declared[0] == "COMBO":
        return ["COMBO", {**options_of(declared), "options": names}]
    return [names, options_of(declared)]
