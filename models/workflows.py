"""Workflows: ComfyUI graphs with named, typed properties.

What runs (graph, output node, properties) lies in object storage as one file under its
content hash and never changes there; a row points at the version in use. Jobs keep the hash
they were ordered with, so a new version never changes what a waiting job will run.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import CentralBase, new_id, one_of, utcnow
from models.errors import NotFound


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
    version: Mapped[int] = mapped_column(default=1)
    content_hash: Mapped[str]  # of the recipe; its key in object storage follows from it
    output_node_id: Mapped[str | None]
    properties: Mapped[list[Any]]
    is_active: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    updated_at: Mapped[datetime] = mapped_column(default=utcnow, onupdate=utcnow)


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


def put(session: Session, *, slug: str, name: str, kind: str, recipe: Recipe) -> Workflow:
    """Create a workflow, or give it a new version if what it runs has changed.

    The recipe's file must be in object storage before this commits.
    """
    workflow = find(session, slug)
    if workflow is None:
        workflow = Workflow(slug=slug, version=0, content_hash="")
        session.add(workflow)
    if workflow.content_hash != recipe.content_hash:
        workflow.version += 1
    workflow.name, workflow.kind = name, kind
    workflow.content_hash = recipe.content_hash
    workflow.output_node_id, workflow.properties = recipe.output_node_id, recipe.properties
    session.flush()
    return workflow


def find(session: Session, slug: str) -> Workflow | None:
    return session.scalar(select(Workflow).where(Workflow.slug == slug))


def get(session: Session, slug: str) -> Workflow:
    workflow = find(session, slug)
    if workflow is None:
        raise NotFound(f"There is no workflow {slug!r}.")
    return workflow
