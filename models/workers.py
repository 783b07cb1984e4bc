"""GPU workers that registered themselves, and the workflows each of them may run.

A worker's name (`worker_id`, usually the id of its instance) is its own choice; its token
is ours, 64 characters that are shown once and stored as a hash. A name belongs to whoever
has its token until nothing was heard of it for a while.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import CentralBase, new_id, row_id, utcnow
from models.errors import FleetFull, Forbidden, Unauthorized, WorkerIdTaken
from models.fleets import Fleet, WorkflowFleet, lock
from models.workflows import Workflow

TOKEN_BYTES = 32  # 64 characters as hexadecimal digits
SEEN_SECONDS = 5  # how exactly `last_seen_at` is kept


class Worker(CentralBase):
    __tablename__ = "comfyui_workers"
    __table_args__ = (
        CheckConstraint("max_concurrency >= 1", name="max_concurrency_positive"),
        CheckConstraint("current_load >= 0", name="current_load_not_negative"),
        CheckConstraint("registration_source = 'fleet'", name="registration_source_known"),
        Index("ix_comfyui_workers_fleet_id_last_seen_at", "fleet_id", "last_seen_at"),
    )

    id: Mapped[UUID] = new_id()
    worker_id: Mapped[str] = mapped_column(unique=True)  # its own name, e.g. the instance id
    fleet_id: Mapped[UUID] = mapped_column(ForeignKey("comfyui_gpu_fleets.id"))
    token_hash: Mapped[str] = mapped_column(unique=True)
    providers: Mapped[list[Any]]
    capabilities: Mapped[dict[str, Any]]
    max_concurrency: Mapped[int] = mapped_column(default=1)
    current_load: Mapped[int] = mapped_column(default=0)
    registration_source: Mapped[str] = mapped_column(default="fleet")
    is_approved: Mapped[bool] = mapped_column(default=True)
    is_draining: Mapped[bool] = mapped_column(default=False)
    last_seen_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


class WorkerWorkflow(CentralBase):
    __tablename__ = "worker_workflows"

    worker_id: Mapped[UUID] = mapped_column(
        ForeignKey("comfyui_workers.id", ondelete="CASCADE"), primary_key=True
    )
    workflow_id: Mapped[UUID] = mapped_column(
        ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True, index=True
    )


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A worker that showed its token, as far as a call needs to know it."""

    id: UUID
    worker_id: str
    fleet_id: UUID
    fleet_slug: str
    providers: list[str]
    workflow_ids: list[UUID]
    is_draining: bool
    last_seen_at: datetime

    @property
    def actor(self) -> str:
        return f"worker:{self.worker_id}"


def register(
    session: Session,
    *,
    fleet: Fleet,
    worker_id: str,
    token: str,
    providers: list[str],
    capabilities: dict[str, Any],
    max_concurrency: int,
    gone_before: datetime,
    old_token: str | None = None,
) -> list[Workflow]:
    """Let a worker in; returns the workflows it may run.

    A name in use is refused, unless its holder was not heard of since `gone_before`, or it
    is the holder itself (`old_token`) that starts anew. The fleet's row is locked, so that
    no two workers take its last place. What operators decided about a name stays with it.
    """
    lock(session, fleet)
    # Locked: what an operator decides about it at this moment stays with the name.
    namesake = session.scalar(
        select(Worker).where(Worker.worker_id == worker_id).with_for_update(key_share=True)
    )
    is_draining = False
    if namesake is not None:
        _require_free(namesake, gone_before=gone_before, old_token=old_token)
        is_draining = namesake.is_draining
        remove(session, namesake.id)
    if count_present(session, fleet_id=fleet.id, gone_before=gone_before) >= fleet.max_workers:
        raise FleetFull(f"The fleet {fleet.slug!r} has its {fleet.max_workers} workers.")
    worker = Worker(
        id=row_id(),
        worker_id=worker_id,
        fleet_id=fleet.id,
        token_hash=token_hash(token),
        providers=providers,
        capabilities=capabilities,
        max_concurrency=max_concurrency,
        is_draining=is_draining,
    )
    session.add(worker)
    try:
        session.flush()
    except IntegrityError:  # at this moment, in another fleet
        raise _taken(worker_id) from None
    return _assign_workflows(session, worker, fleet)


def _require_free(namesake: Worker, *, gone_before: datetime, old_token: str | None) -> None:
    if not namesake.is_approved:
        raise Forbidden("This worker was locked out by an operator.")
    is_same = old_token is not None and namesake.token_hash == token_hash(old_token)
    if not is_same and namesake.last_seen_at >= gone_before:
        raise _taken(namesake.worker_id)


def _taken(worker_id: str) -> WorkerIdTaken:
    return WorkerIdTaken(f"A worker called {worker_id!r} is at work. Stop it first.")


def _assign_workflows(session: Session, worker: Worker, fleet: Fleet) -> list[Workflow]:
    assigned = list(
        session.scalars(
            select(Workflow)
            .join(WorkflowFleet, WorkflowFleet.workflow_id == Workflow.id)
            .where(
                WorkflowFleet.fleet_id == fleet.id
            )  # also what is switched off: it may come back
            .order_by(Workflow.slug)
        )
    )
    session.add_all(
        WorkerWorkflow(worker_id=worker.id, workflow_id=workflow.id) for workflow in assigned
    )
    session.flush()
    return assigned


def give_workflow(session: Session, *, fleet_id: UUID, workflow_id: UUID) -> None:
    """A workflow was mapped to a fleet: the workers that are there now may run it too."""
    others = (
        select(Worker.id, literal(workflow_id, Workflow.id.type))
        .with_for_update(read=True, key_share=True)  # one that leaves now is left out
        .where(Worker.fleet_id == fleet_id)
        .where(
            Worker.id.not_in(
                select(WorkerWorkflow.worker_id).where(WorkerWorkflow.workflow_id == workflow_id)
            )
        )
    )
    session.execute(insert(WorkerWorkflow).from_select(["worker_id", "workflow_id"], others))


def take_workflows(session: Session, *, fleet_id: UUID, workflow_ids: list[UUID]) -> None:
    members = select(Worker.id).where(Worker.fleet_id == fleet_id)
    session.execute(
        delete(WorkerWorkflow).where(
            WorkerWorkflow.worker_id.in_(members), WorkerWorkflow.workflow_id.in_(workflow_ids)
        )
    )


def new_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def count_present(session: Session, *, fleet_id: UUID, gone_before: datetime) -> int:
    query = select(func.count()).select_from(Worker)
    here = (Worker.fleet_id == fleet_id, Worker.last_seen_at >= gone_before)
    return session.scalars(query.where(*here, Worker.is_approved)).one()


def identify(session: Session, token: str) -> Identity:
    row = session.execute(
        select(Worker, Fleet.slug)
        .join(Fleet, Fleet.id == Worker.fleet_id)
        .where(Worker.token_hash == token_hash(token))
    ).one_or_none()
    if row is None:
        raise Unauthorized("The token is unknown: the worker has left or was removed.")
    worker, slug = row
    if not worker.is_approved:
        raise Forbidden("This worker was locked out by an operator.")
    workflow_ids = session.scalars(
        select(WorkerWorkflow.workflow_id).where(WorkerWorkflow.worker_id == worker.id)
    )
    return Identity(
        id=worker.id,
        worker_id=worker.worker_id,
        fleet_id=worker.fleet_id,
        fleet_slug=slug,
        providers=worker.providers,
        workflow_ids=list(workflow_ids),
        is_draining=worker.is_draining,
        last_seen_at=worker.last_seen_at,
    )


def is_seen_long_ago(worker: Identity) -> bool:
    """Long enough to note that it was seen again: a busy worker does not write at every call."""
    return worker.last_seen_at < utcnow() - timedelta(seconds=SEEN_SECONDS)


def note_seen(session: Session, worker_id: UUID, *, current_load: int | None = None) -> None:
    values: dict[str, Any] = {"last_seen_at": utcnow()}
    if current_load is not None:
        values["current_load"] = current_load
    session.execute(update(Worker).where(Worker.id == worker_id).values(values))


def remove(session: Session, worker_id: UUID) -> None:
    session.execute(delete(WorkerWorkflow).where(WorkerWorkflow.worker_id == worker_id))
    session.execute(delete(Worker).where(Worker.id == worker_id))
