"""What a run leaves in ComfyUI's folders, removed: only what that run uploaded or saved.

For a ComfyUI on this machine that works for this worker alone. Names come from ComfyUI's
answers, so each is looked at before it is removed: a file, no link, and inside the folder
once all links on the way are followed.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from gpu_worker.outputs import Output, SavedFile

logger = logging.getLogger(__name__)


def remove(base: Path, *, uploads: Iterable[str], outputs: Iterable[Output]) -> None:
    for name in uploads:
        _remove_inside(base / "input", name)
    for output in outputs:
        if isinstance(output, SavedFile):
            _remove_inside(base / "output", f"{output.subfolder}/{output.filename}".lstrip("/"))


def _remove_inside(folder: Path, name: str) -> None:
    try:
        root = folder.resolve(strict=True)
        # The last part stays as it is: a link is not ours to remove.
        parent = (root / name).parent.resolve(strict=True)
        path = parent / Path(name).name
        if not parent.is_relative_to(root) or path.is_symlink() or not path.is_file():
            return
        path.unlink()
        while parent != root and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent
    except FileNotFoundError:
        return  # somebody else removed it
    except (OSError, ValueError) as error:
        logger.warning("Could not remove %r from ComfyUI's folder: %s", name, error)
