"""Dispatches that wait where nobody serves them: their workflow runs on another fleet by now.

`lanes.move` takes along what waits when a workflow moves. What was leased or being ordered at
that moment comes to wait at the old fleet later, and is found here. So is what was ordered in the
moment in which the workflow was taken from its last fleet.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import and_, exists, select
from sqlalchemy.orm import Session, aliased

from models import lanes
from models.dispatches import Dispatch, DispatchStatus
from models.fleets import Fleet, WorkflowFleet


def move(session: Session, *, stage: str, limit: int = 1000) -> list[tuple[UUID, str]]:
    """Each to the fleet that runs its workflow now; the ids, and the slugs of those fleets."""
    old, serving = aliased(Fleet), aliased(Fleet)
    stranded = (
        select(Dispatch, serving)
        .join(old, and_(old.id == Dispatch.fleet_id, old.stage == stage))
        .join(
            WorkflowFleet,
            and_(WorkflowFleet.workflow_id == Dispatch.workflow_id, WorkflowFleet.stage == stage),
        )
        .join(serving, and_(serving.id == WorkflowFleet.fleet_id, serving.is_active))
        .where(Dispatch.status == DispatchStatus.QUEUED, serving.id != old.id)
        .limit(limit)
        .with_for_update(skip_locked=True, of=Dispatch)
    )
    moved = []
    # Sorted here, so that each user's jobs stay in order: there is no index to sort them by.
    for dispatch, fleet in sorted(session.execute(stranded).all(), key=lambda row: row[0].seq):
        lanes.change_lane(session, dispatch, fleet_id=fleet.id, priority=dispatch.priority)
        moved.append((dispatch.id, fleet.slug))
    return moved


def unserved(
    session: Session, *, stage: str, before: datetime, limit: int = 1000
) -> list[Dispatch]:
    """What has waited since then for a workflow that no fleet of the stage runs."""
    is_mapped = exists().where(
        WorkflowFleet.workflow_id == Dispatch.workflow_id, WorkflowFleet.stage == stage
    )
    query = (
        select(Dispatch)
        .join(Fleet, and_(Fleet.id == Dispatch.fleet_id, Fleet.stage == stage))
        .where(Dispatch.status == DispatchStatus.QUEUED, Dispatch.updated_at <= before, ~is_mapped)
    )
    return list(session.scalars(query.limit(limit)))
