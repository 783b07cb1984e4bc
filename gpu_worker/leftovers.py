"""What runs leave in ComfyUI's folders, removed: only what they uploaded or saved.

For a ComfyUI on this machine that works for this worker alone. What a run may leave is written
down before it begins and crossed out when it is gone, so the end of this process, or of
ComfyUI's, leaves nothing that the next look does not find.

Names come from ComfyUI's answers, so each is looked at before it is removed: a file, no link,
and inside the folder once all links on the way are followed.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_worker.outputs import Output, SavedFile

logger = logging.getLogger(__name__)

_JOB_ID = re.compile(r"[A-Za-z0-9-]{1,100}")


@dataclass(frozen=True)
class Note:
    """A run that has begun."""

    job_id: str  # files of the job are saved in a folder that is named after it
    uploads: list[str]


class Leftovers:
    """One run at a time."""

    def __init__(self, base: Path | None) -> None:
        self._base = base
        self._file: Path | None = None
        self._noted: list[Note] = []

    @property
    def is_wanted(self) -> bool:
        return self._base is not None

    def keep_in(self, file: Path) -> None:
        """From now on. What is in the file was left by a process that is gone."""
        self._file = file
        self._noted += _read(file)

    def note(self, job_id: str, uploads: Iterable[str]) -> None:
        if self._base is not None:
            self._noted.append(Note(job_id, sorted(uploads)))
            self._write()

    def remove(
        self,
        *,
        uploads: Iterable[str] = (),
        saved: Iterable[Output] = (),
        previews: Iterable[SavedFile] = (),
    ) -> None:
        if self._base is None:
            return
        for name in uploads:
            _remove_inside(self._base / "input", name)
        for kind, files in (("output", saved), ("temp", previews)):
            for file in files:
                if isinstance(file, SavedFile):
                    path = f"{file.subfolder}/{file.filename}".lstrip("/")
                    _remove_inside(self._base / kind, path)

    def remove_noted(self) -> None:
        """Of all runs so far. None of them is at work any more."""
        if self._base is None or not self._noted:
            return
        for note in self._noted:
            self.remove(uploads=note.uploads)
            _remove_folders(self._base / "output", note.job_id)
        self._noted.clear()
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps([asdict(note) for note in self._noted]))
        os.replace(written, self._file)


def _read(file: Path) -> list[Note]:
    try:
        return [
            Note(str(note["job_id"]), [str(name) for name in note["uploads"]])
            for note in json.loads(file.read_text())
        ]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError):
        logger.warning("%s can't be read: files of before may stay in ComfyUI's folders.", file)
        return []


def _remove_folders(output: Path, job_id: str) -> None:
    """Of all tries of the job: no other machine saves anything here."""
    if not _JOB_ID.fullmatch(job_id):
        return
    for folder in output.glob(f"job-{job_id}-*"):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)


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
