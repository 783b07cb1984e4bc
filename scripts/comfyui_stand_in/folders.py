"""The folders input, output and temp, and the names of files in them.

Nothing is saved outside of these folders. Reading is not confined: the real ComfyUI opens
any path an input names, and whoever writes tests against that should see it here too.
"""

import hashlib
import mimetypes
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_ANNOTATIONS = {" [output]": "output", " [input]": "input", " [temp]": "temp"}


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """Where the next file with a prefix goes."""

    folder: Path
    subfolder: str
    stem: str
    counter: int

    def name(self, ending: str, *, offset: int = 0) -> str:
        return f"{self.stem}_{self.counter + offset:05}_.{ending}"


class Folders:
    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        shutil.rmtree(self.root / "temp", ignore_errors=True)
        for name in ("input", "output", "temp"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def of(self, kind: str) -> Path | None:
        return self.root / kind if kind in ("input", "output", "temp") else None

    def annotated(self, name: str) -> tuple[str, Path | None]:
        """Split "in.png [temp]" into the name and the folder it asks for."""
        for ending, kind in _ANNOTATIONS.items():
            if name.endswith(ending):
                return name.removesuffix(ending), self.of(kind)
        return name, None

    def readable(self, name: str) -> Path:
        plain, folder = self.annotated(name)
        return (folder or self.root / "input") / plain

    def input_files(self, kinds: tuple[str, ...]) -> list[str]:
        found = (entry for entry in (self.root / "input").iterdir() if entry.is_file())
        return sorted(
            entry.name
            for entry in found
            if (mimetypes.guess_type(entry.name)[0] or "").split("/")[0] in kinds
        )

    def new_file(self, prefix: str, *, kind: str = "output", size: tuple[int, int]) -> NewFile:
        """The next free name. Counters start over when the files before were deleted."""
        base = self.root / kind
        prefix = prefix.replace("%width%", str(size[0])).replace("%height%", str(size[1]))
        subfolder, stem = os.path.split(os.path.normpath(prefix))
        folder = Path(os.path.abspath(base / subfolder))
        common = os.path.commonpath((base, folder))
        if common != str(base):
            raise Exception(
                "**** ERROR: Saving image outside the output folder is not allowed."
                f"\n full_output_folder: {folder}\n         output_dir: {base}"
                f"\n         commonpath: {common}"
            )
        counter = 1 + max((_counter(name, stem) for name in _names(folder)), default=0)
        return NewFile(folder=folder, subfolder=subfolder, stem=stem, counter=counter)


def _names(folder: Path) -> list[str]:
    """What is in a folder, which is made when it is not there yet."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        return []


def _counter(name: str, stem: str) -> int:
    if not name.startswith(f"{stem}_"):
        return 0
    digits = name[len(stem) + 1 :].split("_")[0]
    return int(digits) if digits.isdecimal() else 0


def fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
