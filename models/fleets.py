"""Fleets of GPU workers, and which workflow runs on which fleet of a stage.

A fleet's slug is the name of its queue in Redis, part of its workers' names in Celery, and with
its stage part of names in AWS (`asg-STAGE-SLUG`, `lt-STAGE-SLUG`, of 128 characters at most).
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypedDict, Unpack
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Select, UniqueConstraint, delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import slugs
from models.base import CentralBase, change_row, new_id, utcnow
from models.errors import InvalidInput, NotFound, SlugTaken

STAGE_MAX_LENGTH = 32
MAX_WORKERS_LIMIT = 10_000
#: Keys and queues of the control worker and of Celery itself. A fleet of such a name would read
#: messages that are not its own.
RESERVED = {"control", "unacked", "celery", "celeryev", "runpod", "webhooks"}


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


def check_slug(slug: str) -> str:
    """The one rule for the names of fleets, for all who name one."""
    if slug in RESERVED:
        sentence = f"{slug!r} can't be the name of a fleet: others use this name in Redis."
        raise InvalidInput.field("slug", sentence)
    return slugs.check(slug)


def check_stage(stage: str) -> str:
    if len(stage) > STAGE_MAX_LENGTH:
        raise InvalidInput.field("stage", f"Takes at most {STAGE_MAX_LENGTH} characters.")
    return slugs.check(stage, field="stage")


def put(session: Session, *, stage: str, slug: str, name: str, max_workers: int = 50) -> Fleet:
    fleet = find(session, stage=stage, slug=slug)
    if fleet is None:
        fleet = create(session, stage=stage, slug=slug, name=name, max_workers=max_workers)
    else:
        fleet.name, fleet.max_workers = name, max_workers
    session.flush()
    return fleet


def create(
    session: Session,
    *,
    stage: str,
    slug: str,
    name: str,
    max_workers: int = 50,
    bundle: str | None = None,
) -> Fleet:
    check_change({"name": name, "max_workers": max_workers, "bundle": bundle})
    fleet = Fleet(
        stage=check_stage(stage),
        slug=check_slug(slug),
        name=name,
        max_workers=max_workers,
        bundle=bundle,
    )
    try:
        with session.begin_nested():
            session.add(fleet)
    except IntegrityError:
        raise SlugTaken(f"There is a fleet {slug!r} in stage {stage!r} already.") from None
    return fleet


class FleetChange(TypedDict, total=False):
    name: str
    max_workers: int
    bundle: str | None
    is_active: bool


def check_change(values: FleetChange) -> None:
    if "name" in values:
        slugs.check_name(values["name"])
    if (bundle := values.get("bundle")) is not None:
        slugs.check_name(bundle, field="bundle")
    if not 0 <= values.get("max_workers", 0) <= MAX_WORKERS_LIMIT:
        raise InvalidInput.field("max_workers", f"Must be from 0 to {MAX_WORKERS_LIMIT}.")


def change(session: Session, fleet: Fleet, **values: Unpack[FleetChange]) -> dict[str, list[Any]]:
    """Switched off, it takes no more orders and lets no more workers in. Those there work on.

    Returns what was different, before and after.
    """
    check_change(values)
    changes = change_row(fleet, values)
    session.flush()
    return changes


def find(session: Session, *, stage: str, slug: str) -> Fleet | None:
    return session.scalar(select(Fleet).where(Fleet.stage == stage, Fleet.slug == slug))


def get(session: Session, *, stage: str, slug: str) -> Fleet:
    fleet = find(session, stage=stage, slug=slug)
    if fleet is None:
        raise NotFound(f"There is no fleet {slug!r} in stage {stage!r}.")
    return fleet


def of_stage(stage: str) -> Select[tuple[Fleet]]:
    return select(Fleet).where(Fleet.stage == stage)


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


def mapped(session: Session, *, stage: str, workflow_ids: Iterable[UUID]) -> dict[UUID, Fleet]:
    """The fleet of each of these workflows in a stage, switched on or not."""
    rows = session.execute(
        select(WorkflowFleet.workflow_id, Fleet)
        .join(Fleet, Fleet.id == WorkflowFleet.fleet_id)
        .where(WorkflowFleet.stage == stage, WorkflowFleet.workflow_id.in_(list(workflow_ids)))
    )
    return dict(rows.tuples().all())


def workflows_of(session: Session, fleet_ids: Iterable[UUID]) -> dict[UUID, list[tuple[UUID, str]]]:
    """Ids and slugs of the workflows of each fleet, in order of their slugs."""
    from models.workflows import Workflow

    found: dict[UUID, list[tuple[UUID, str]]] = {fleet_id: [] for fleet_id in fleet_ids}
    rows = session.execute(
        select(WorkflowFleet.fleet_id, Workflow.id, Workflow.slug)
        .join(Workflow, Workflow.id == WorkflowFleet.workflow_id)
        .where(WorkflowFleet.fleet_id.in_(found))
        .order_by(Workflow.slug)
    )
    for fleet_id, *workflow in rows:
        found[fleet_id].append((workflow[0], workflow[1]))
    return found


def lock(session: Session, fleet: Fleet) -> None:
    """One at a time lets workers in or changes what they run. Orders are not held up."""
    row = select(Fleet.id).where(Fleet.id == fleet.id)
    session.execute(row.with_for_update(key_share=True))


def lock_stage(session: Session, stage: str) -> None:
    """One at a time changes which fleet runs what. In one order, so no two wait for each other."""
    rows = select(Fleet.id).where(Fleet.stage == stage).order_by(Fleet.id)
    session.execute(rows.with_for_update(key_share=True))


def assign(session: Session, fleet: Fleet, *, workflow_id: UUID) -> int:
    """Run a workflow on this fleet from now on. Its waiting dispatches move along: how many."""
    from models import lanes, workers

    moved = 0
    lock(session, fleet)
    mapping = session.scalar(
        select(WorkflowFleet).where(
            WorkflowFleet.workflow_id == workflow_id, WorkflowFleet.stage == fleet.stage
        )
    )
    if mapping is None:
        session.add(WorkflowFleet(workflow_id=workflow_id, stage=fleet.stage, fleet_id=fleet.id))
    elif mapping.fleet_id != fleet.id:
        moved = lanes.move(
            session, workflow_id=workflow_id, source=mapping.fleet_id, target=fleet.id
        )
        mapping.fleet_id = fleet.id
    session.flush()
    workers.give_workflow(session, fleet_id=fleet.id, workflow_id=workflow_id)
    return moved


def unassign(session: Session, fleet: Fleet, *, workflow_ids: Iterable[UUID]) -> None:
    """Run these workflows here no more. Nothing of them may wait here."""
    from models import workers

    gone = list(workflow_ids)
    mapped = (WorkflowFleet.fleet_id == fleet.id, WorkflowFleet.workflow_id.in_(gone))
    session.execute(delete(WorkflowFleet).where(*mapped))
    workers.take_workflows(session, fleet_id=fleet.id, workflow_ids=gone)
