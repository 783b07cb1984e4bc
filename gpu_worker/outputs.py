"""Which files a finished run made, and what they are.

Decided by the ending of a file's name and not by the key it is listed under: a video is
found under `images`, and custom nodes use keys of their own. What ComfyUI calls a file is
never used as a path here.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# The types that can be stored, each with the ending of its files.
ENDINGS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/webp": "webp",
    "image/gif": "gif",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "video/quicktime": "mov",
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/flac": "flac",
    "audio/ogg": "ogg",
    "audio/mp4": "m4a",
    "model/gltf-binary": "glb",
    "model/obj": "obj",
    "text/plain": "txt",
    "application/json": "json",
    "application/octet-stream": "bin",
}
_TYPES = {ending: mime_type for mime_type, ending in ENDINGS.items()} | {
    "jpeg": "image/jpeg",
    "opus": "audio/ogg",
}
_UNKNOWN = "application/octet-stream"
_NAME_MAX_CHARACTERS = 100
_UNNAMEABLE = re.compile("[\0\ud800-\udfff]")  # nothing that an address could name
_COUNTER = re.compile(r"_\d{5,}_?$")  # "out_00001_": ComfyUI's, and no use to anybody


@dataclass(frozen=True)
class SavedFile:
    """A file in ComfyUI's output folder, or in the temporary one."""

    filename: str
    subfolder: str


@dataclass(frozen=True)
class SavedText:
    text: str


Output = SavedFile | SavedText


def found(outputs: object, *, output_node_id: str | None) -> list[Output]:
    """What the node made, or all of them; in order, each once."""
    nodes = outputs if isinstance(outputs, dict) else {}
    if output_node_id is not None:
        nodes = {output_node_id: nodes.get(output_node_id)}
    made = (item for node_id in sorted(nodes, key=_natural) for item in _of_node(nodes[node_id]))
    return list(dict.fromkeys(made))


def previews(outputs: object) -> list[SavedFile]:
    """In ComfyUI's temporary folder: shown to whoever watches, and no result."""
    nodes = outputs if isinstance(outputs, dict) else {}
    items = (item for shown in nodes.values() for _, listed in _lists(shown) for item in listed)
    return [file for item in items if (file := _file(item, kind="temp"))]


def _of_node(shown: Any) -> Iterator[Output]:
    for key, listed in _lists(shown):
        yield from (file for item in listed if (file := _file(item, kind="output")))
        lines = [item for item in listed if isinstance(item, str)]
        if key == "text" and lines:
            # A node that returns one text instead of a list of them has it taken apart by
            # ComfyUI, into a list of its characters.
            is_apart = all(isinstance(item, str) and len(item) == 1 for item in listed)
            yield SavedText(("" if is_apart else "\n").join(lines))


def _lists(shown: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    for key, items in shown.items() if isinstance(shown, dict) else ():
        yield key, items if isinstance(items, list | tuple) else []


def _file(item: Any, *, kind: str) -> SavedFile | None:
    if not isinstance(item, dict):
        return None
    filename, subfolder = item.get("filename"), item.get("subfolder") or ""
    if not isinstance(filename, str) or not filename or not isinstance(subfolder, str):
        return None
    if _UNNAMEABLE.search(filename + subfolder):
        return None
    if item.get("type", "output") != kind:
        return None
    return SavedFile(filename, subfolder)


def mime_type_of(output: Output) -> str:
    if isinstance(output, SavedText):
        return "text/plain"
    return _TYPES.get(output.filename.rpartition(".")[2].lower(), _UNKNOWN)


def names_for(outputs: list[Output]) -> list[str]:
    """A name for each that a person can read, different from all others of the run."""
    names: list[str] = []
    for output in outputs:
        stem, ending = _stem(output), ENDINGS[mime_type_of(output)]
        name, number = f"{stem}.{ending}", 2
        while name in names:
            name, number = f"{stem}-{number}.{ending}", number + 1
        names.append(name)
    return names


def _stem(output: Output) -> str:
    if isinstance(output, SavedText):
        return "text"
    name = re.split(r"[/\\]", unicodedata.normalize("NFC", output.filename))[-1]
    stem = _COUNTER.sub("", name.rpartition(".")[0] or name)
    stem = "".join(c for c in stem if unicodedata.category(c)[0] != "C" and c not in ':*?"<>|')
    return stem[:_NAME_MAX_CHARACTERS].strip(" ._") or "output"


def _natural(node_id: str) -> tuple[int, str]:
    """ComfyUI lists nodes in the order they ended; people count 2, 10 and not 10, 2."""
    return (int(node_id) if node_id.isascii() and node_id.isdigit() else 1 << 62, node_id)
