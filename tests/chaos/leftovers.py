"""Files that nobody knows of any more: objects, uploads, working folders, temporary files."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from sqlalchemy import select

from models import object_paths
from models.files import File, FileStatus
from models.jobs import Job
from models.workflows import Workflow
from tasks.backend import Backend
from tests.chaos.verdict import Finding


def about_objects(backend: Backend, folder: Path) -> Iterator[Finding]:
    """Objects and rows are the same: none is missing, none is left over, none is unfinished."""
    sizes, recipes = _stored(backend), _recipes(backend)
    there = {_key(path, folder): path for path in folder.rglob("*") if path.is_file()}
    for key in sorted(there.keys() - sizes.keys() - recipes):
        yield Finding(f"The object {key} is in no row.", _job_of(key))
    for key in sorted((sizes.keys() | recipes) - there.keys()):
        yield Finding(f"The object {key} is missing.", _job_of(key))
    for key in sorted(sizes.keys() & there.keys()):
        size = there[key].stat().st_size
        if sizes[key] != size:
            yield Finding(f"The object {key} has {size} bytes, not {sizes[key]}.", _job_of(key))


def _stored(backend: Backend) -> dict[str, int]:
    sizes: dict[str, int] = {}
    stored = File.status == FileStatus.STORED, File.deleted_at.is_(None)
    for pool in backend.databases.pools:
        with backend.databases.pool(pool) as session:
            for file in session.scalars(select(File).where(*stored)):
                sizes[file.object_key] = file.size_bytes
    return sizes


def _recipes(backend: Backend) -> set[str]:
    hashes: set[str] = set()
    with backend.databases.central(read_only=True) as session:
        hashes |= set(session.scalars(select(Workflow.content_hash)))
    for pool in backend.databases.pools:
        with backend.databases.pool(pool) as session:
            hashes |= {one["content_hash"] for one in session.scalars(select(Job.input_payload))}
    return {object_paths.graph_key(one) for one in hashes}


def _key(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _job_of(key: str) -> UUID | None:
    folders = key.split("/")
    return UUID(folders[3]) if folders[2:3] == ["ai-jobs"] else None


def about_uploads(backend: Backend) -> Iterator[Finding]:
    """What was announced and forgotten was given up, what was deleted is gone."""
    for pool in backend.databases.pools:
        with backend.databases.pool(pool) as session:
            for file in session.scalars(select(File).where(File.purged_at.is_(None))):
                if file.deleted_at is not None:
                    yield Finding(f"The file {file.id} was deleted, its object was not.")
                elif file.status == FileStatus.PENDING:
                    yield Finding(f"The upload {file.id} was never given up.")


def about_folders(state: Path) -> Iterator[Finding]:
    """Nothing of a job is left at a GPU worker, in its ComfyUI, or where temporary files go."""
    working = [*state.glob("gpu-*/*/jobs/*"), *state.glob("gpu-*/**/*.part")]
    working += state.glob("gpu-*/*/*.new")
    working += [path for path in state.glob("comfyui-*/*/**/*") if path.is_file()]
    working += state.glob("tmp/*")
    for path in sorted(working):
        yield Finding(f"{path.relative_to(state)} is left over.")
    for path in sorted(state.glob("gpu-*/*/*-self_hosted.json")):
        if json.loads(path.read_text()):
            yield Finding(f"{path.relative_to(state)} names work that nobody has ended.")
