"""Workflows: ComfyUI graphs with named, typed properties.

What runs (graph, output node, properties) is a recipe. It lies in object storage as one file
under its content hash and never changes there. Each recipe that was ever uploaded is a version of
its workflow, numbered from 1 and kept for ever; one of them is in use. Jobs keep the hash they
were ordered with, so another version never changes what a waiting job will run.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict, Unpack
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Select, UniqueConstraint, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import slugs
from models.base import CentralBase, change_row, new_id, one_of, utcnow
from models.errors import InvalidInput, NotFound


class Kind(StrEnum):
    """What a workflow makes."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
    TEXT = "text"


class Workflow(CentralBase):
    __tablename__ = "workflows"
    __table_args__ = (
        one_of("kind", Kind),
        CheckConstraint("version >= 1", name="version_positive"),
        CheckConstraint("length(content_hash) = 64", name="content_hash_sha256"),
    )

    id: Mapped[UUID] = new_id()
    slug: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    kind: Mapped[str]
    # The version in use, and what orders need to know of it.
    version: Mapped[int] = mapped_column(default=1)
    content_hash: Mapped[str]  # of the recipe; its key in object storage follows from it
    output_node_id: Mapped[str | None]
    properties: Mapped[list[Any]]
    is_active: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    updated_at: Mapped[datetime] = mapped_column(default=utcnow, onupdate=utcnow)


class WorkflowVersion(CentralBase):
    """The application may add rows, and nothing else."""

    __tablename__ = "workflow_versions"
    __table_args__ = (
        UniqueConstraint("workflow_id", "version"),
        UniqueConstraint("workflow_id", "content_hash"),
        CheckConstraint("version >= 1", name="version_positive"),
        CheckConstraint("length(content_hash) = 64", name="content_hash_sha256"),
    )

    id: Mapped[UUID] = new_id()
    workflow_id: Mapped[UUID] = mapped_column(ForeignKey("workflows.id"))
    version: Mapped[int]
    content_hash: Mapped[str]
    output_node_id: Mapped[str | None]
    properties: Mapped[list[Any]]
    created_by: Mapped[str | None]  # an actor, as in the audit log
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


@dataclass(frozen=True)
class Recipe:
    """Everything about a workflow that decides what a job runs."""

    graph: dict[str, Any]
    output_node_id: str | None
    properties: list[Any]

    def to_bytes(self) -> bytes:
        """What is stored and hashed: the same recipe is the same file."""
        return json.dumps(vars(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Recipe":
        return cls(**json.loads(data))

    @property
    def content_hash(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()


@dataclass(frozen=True)
class Uploaded:
    workflow: Workflow
    is_new: bool  # nobody had uploaded this recipe before
    changes: dict[str, list[Any]]  # before and after; empty if it was so already


def put(session: Session, *, slug: str, name: str, kind: str, recipe: Recipe) -> Workflow:
    return upload(session, slug=slug, name=name, kind=kind, recipe=recipe).workflow


def upload(
    session: Session,
    *,
    slug: str,
    name: str,
    kind: str,
    recipe: Recipe,
    created_by: str | None = None,
) -> Uploaded:
    """From now on the workflow runs this recipe, which is a new version if it was never there.

    The recipe's file must be in object storage before this commits.
    """
    workflow = _locked(session, slug) or _begin(session, slug, name, kind, recipe)
    if workflow.kind != kind:
        # It says where outputs go, also those of jobs that wait.
        sentence = f"{slug!r} makes {workflow.kind}, and that stays so. Choose another slug."
        raise InvalidInput.field("kind", sentence)
    version = find_version(session, workflow, content_hash=recipe.content_hash)
    is_new = version is None
    if version is None:
        latest = select(func.max(WorkflowVersion.version))
        earlier = session.scalar(latest.where(WorkflowVersion.workflow_id == workflow.id))
        version = WorkflowVersion(
            workflow_id=workflow.id,
            version=(earlier or 0) + 1,
            content_hash=recipe.content_hash,
            output_node_id=recipe.output_node_id,
            properties=recipe.properties,
            created_by=created_by,
        )
        session.add(version)
    changes = use(session, workflow, version) | change(session, workflow, name=name)
    return Uploaded(workflow, is_new, changes)


def use(session: Session, workflow: Workflow, version: WorkflowVersion) -> dict[str, list[Any]]:
    """What is ordered from now on runs this version."""
    changes = change_row(workflow, {"version": version.version})
    workflow.content_hash = version.content_hash
    workflow.output_node_id, workflow.properties = version.output_node_id, version.properties
    session.flush()
    return changes


class WorkflowChange(TypedDict, total=False):
    name: str
    is_active: bool


def change(
    session: Session, workflow: Workflow, **values: Unpack[WorkflowChange]
) -> dict[str, list[Any]]:
    """Switched off, nothing of it can be ordered. Returns what was different, before and after."""
    if "name" in values:
        slugs.check_name(values["name"])
    changes = change_row(workflow, values)
    session.flush()
    return changes


def _begin(session: Session, slug: str, name: str, kind: str, recipe: Recipe) -> Workflow:
    workflow = Workflow(
        slug=slugs.check(slug),
        name=name,
        kind=kind,
        content_hash=recipe.content_hash,
        output_node_id=recipe.output_node_id,
        properties=recipe.properties,
    )
    try:
        with session.begin_nested():
            session.add(workflow)
    except IntegrityError:  # somebody else has, at this moment
        return get(session, slug, lock=True)
    return workflow


def _locked(session: Session, slug: str) -> Workflow | None:
    """One upload of a workflow at a time: versions are numbered one after the other."""
    query = select(Workflow).where(Workflow.slug == slug).with_for_update(key_share=True)
    return session.scalar(query.execution_options(populate_existing=True))


def everything() -> Select[tuple[Workflow]]:
    return select(Workflow)


def find(session: Session, slug: str) -> Workflow | None:
    return session.scalar(select(Workflow).where(Workflow.slug == slug))


def get(session: Session, slug: str, *, lock: bool = False) -> Workflow:
    workflow = _locked(session, slug) if lock else find(session, slug)
    if workflow is None:
        raise NotFound(f"There is no workflow {slug!r}.")
    return workflow


def versions(workflow: Workflow) -> Select[tuple[WorkflowVersion]]:
    return select(WorkflowVersion).where(WorkflowVersion.workflow_id == workflow.id)


def find_version(
    session: Session,
    workflow: Workflow,
    *,
    version: int | None = None,
    content_hash: str | None = None,
) -> WorkflowVersion | None:
    query = versions(workflow)
    if version is not None:
        query = query.where(WorkflowVersion.version == version)
    if content_hash is not None:
        query = query.where(WorkflowVersion.content_hash == content_hash)
    return session.scalars(query).one_or_none()


def get_version(
    session: Session,
    workflow: Workflow,
    *,
    version: int | None = None,
    content_hash: str | None = None,
) -> WorkflowVersion:
    """By its number, its hash or both; by neither it is the one in use."""
    if version is None and content_hash is None:
        version = workflow.version
    found = find_version(session, workflow, version=version, content_hash=content_hash)
    if found is None:
        raise NotFound(f"The workflow {workflow.slug!r} has no such version.")
    return found
