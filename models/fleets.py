"""Fleets of GPU workers, and which workflow runs on which fleet of a stage."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, UniqueConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import CentralBase, new_id, utcnow
from models.errors import NotFound


class Fleet(CentralBase):
    __tablename__ = "comfyui_gpu_fleets"
    __table_args__ = (
        UniqueConstraint("stage", "slug"),
        CheckConstraint("max_workers >= 0", name="max_workers_not_negative"),
    )

    id: Mapped[UUID] = new_id()
    stage: Mapped[str]
    slug: Mapped[str]  # also the name of its queue
    name: Mapped[str]
    max_workers: Mapped[int] = mapped_column(default=50)
    bundle: Mapped[str | None]  # the set of models its machines carry
    is_active: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


class WorkflowFleet(CentralBase):
    __tablename__ = "comfyui_workflow_fleets"
    __table_args__ = (UniqueConstraint("workflow_id", "stage"),)

    id: Mapped[UUID] = new_id()
    workflow_id: Mapped[UUID] = mapped_column(ForeignKey("workflows.id", ondelete="CASCADE"))
    stage: Mapped[str]
    fleet_id: Mapped[UUID] = mapped_column(ForeignKey("comfyui_gpu_fleets.id"), index=True)


def put(session: Session, *, stage: str, slug: str, name: str, max_workers: int = 50) -> Fleet:
    fleet = find(session, stage=stage, slug=slug)
    if fleet is None:
        fleet = Fleet(stage=stage, slug=slug, name=name, max_workers=max_workers)
        session.add(fleet)
    else:
        fleet.name, fleet.max_workers = name, max_workers
    session.flush()
    return fleet


def find(session: Session, *, stage: str, slug: str) -> Fleet | None:
    return session.scalar(select(Fleet).where(Fleet.stage == stage, Fleet.slug == slug))


def get(session: Session, *, stage: str, slug: str) -> Fleet:
    fleet = find(session, stage=stage, slug=slug)
    if fleet is None:
        raise NotFound(f"There is no fleet {slug!r} in stage {stage!r}.")
    return fleet


def serving(session: Session, *, workflow_id: UUID, stage: str) -> Fleet | None:
    """The active fleet that runs a workflow in this stage."""
    return session.scalar(
        select(Fleet)
        .join(WorkflowFleet, WorkflowFleet.fleet_id == Fleet.id)
        .where(
            WorkflowFleet.workflow_id == workflow_id,
            WorkflowFleet.stage == stage,
            Fleet.is_active,
        )
    )


def lock(session: Session, fleet: Fleet) -> None:
    """One at a time lets workers in or changes what they run. Orders are not held up."""
    row = select(Fleet.id).where(Fleet.id == fleet.id)
    session.execute(row.with_for_update(key_share=True))


def assign(session: Session, fleet: Fleet, *, workflow_id: UUID) -> None:
    """Run a workflow on this fleet from now on. Its waiting dispatches move along."""
    from models import lanes, workers

    lock(session, fleet)
    mapping = session.scalar(
        select(WorkflowFleet).where(
            WorkflowFleet.workflow_id == workflow_id, WorkflowFleet.stage == fleet.stage
        )
    )
    if mapping is None:
        session.add(WorkflowFleet(workflow_id=workflow_id, stage=fleet.stage, fleet_id=fleet.id))
    elif mapping.fleet_id != fleet.id:
        lanes.move(session, workflow_id=workflow_id, source=mapping.fleet_id, target=fleet.id)
        mapping.fleet_id = fleet.id
    session.flush()
    workers.give_workflow(session, fleet_id=fleet.id, workflow_id=workflow_id)
