"""Workflows: ComfyUI graphs with named, typed properties.

The graph lies in object storage under its content hash and never changes there; a row
points at the version in use. Jobs keep the hash they were ordered with, so a new version
never changes what a waiting job will run.
"""

import hashlib
import json
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
    content_hash: Mapped[str]  # of the graph; its key in object storage follows from it
    output_node_id: Mapped[str | None]
    properties: Mapped[list[Any]]
    is_active: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    updated_at: Mapped[datetime] = mapped_column(default=utcnow, onupdate=utcnow)


def canonical(graph: dict[str, Any]) -> bytes:
    """The bytes that are stored and hashed: the same graph is the same file."""
    return json.dumps(graph, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def content_hash(graph: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(graph)).hexdigest()


def put(
    session: Session,
    *,
    slug: str,
    name: str,
    kind: str,
    graph_hash: str,
    output_node_id: str | None,
    properties: list[Any],
) -> Workflow:
    """Create a workflow, or give it a new version if anything that runs has changed."""
    workflow = find(session, slug)
    if workflow is None:
        workflow = Workflow(
            slug=slug,
            name=name,
            kind=kind,
            content_hash=graph_hash,
            output_node_id=output_node_id,
            properties=properties,
        )
        session.add(workflow)
    else:
        before = (workflow.content_hash, workflow.output_node_id, workflow.properties)
        if before != (graph_hash, output_node_id, properties):
            workflow.version += 1
        workflow.name, workflow.kind = name, kind
        workflow.content_hash, workflow.output_node_id = graph_hash, output_node_id
        workflow.properties = properties
    session.flush()
    return workflow


def find(session: Session, slug: str) -> Workflow | None:
    return session.scalar(select(Workflow).where(Workflow.slug == slug))


def get(session: Session, slug: str) -> Workflow:
    workflow = find(session, slug)
    if workflow is None:
        raise NotFound(f"There is no workflow {slug!r}.")
    return workflow
