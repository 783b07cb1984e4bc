"""Fleets as administrators set them up, and which workflows they run.

A workflow runs on one fleet of a stage. Mapped to another one, what waits for it moves along, and
tickets are rung there; what is being worked on ends where it is. Mapped to none, it must have no
open job: nobody would ever take it.
"""

from collections.abc import Sequence
from typing import Any, Unpack
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models import audit, fleets, lanes
from models.dispatches import OPEN, Dispatch
from models.errors import NotPossibleNow
from models.fleets import Fleet, FleetChange
from models.properties import refuse_if
from models.workflows import Workflow
from tasks.backend import Backend

RUNG_AT_ONCE = 1000  # tickets for what has moved; the reconciler rings for the rest


def create(
    backend: Backend,
    *,
    stage: str,
    slug: str,
    name: str | None = None,
    max_workers: int = 50,
    bundle: str | None = None,
    actor: str,
) -> Fleet:
    given: dict[str, Any] = {"name": name or slug, "max_workers": max_workers, "bundle": bundle}
    with backend.databases.central() as session:
        fleet = fleets.create(session, stage=stage, slug=slug, **given)
        audit.record(session, "fleet.create", actor=actor, fleet=slug, stage=stage, **given)
    backend.news.tell_operators()
    return fleet


def change(
    backend: Backend, *, stage: str, slug: str, actor: str, **values: Unpack[FleetChange]
) -> Fleet:
    with backend.databases.central() as session:
        fleet = fleets.get(session, stage=stage, slug=slug)
        fleets.lock(session, fleet)
        session.refresh(fleet)
        changes = fleets.change(session, fleet, **values)
        if changes:
            audit.record(
                session, "fleet.change", actor=actor, fleet=slug, stage=stage, changed=changes
            )
    backend.forget_catalog()
    backend.news.tell_operators()
    return fleet


def run_workflows(
    backend: Backend, *, stage: str, slug: str, wanted: Sequence[str], actor: str
) -> Fleet:
    """From now on the fleet runs these workflows, and no others."""
    with backend.databases.central() as session:
        fleets.lock_stage(session, stage)
        fleet = fleets.get(session, stage=stage, slug=slug)
        ids = _ids(session, wanted)
        runs = {name: one for one, name in fleets.workflows_of(session, [fleet.id])[fleet.id]}
        removed, added = sorted(runs.keys() - ids), sorted(ids.keys() - runs)
        _require_no_open_jobs(session, fleet, removed)
        fleets.unassign(session, fleet, workflow_ids=[runs[name] for name in removed])
        moved = sum(fleets.assign(session, fleet, workflow_id=ids[name]) for name in added)
        waiting = lanes.waiting(session, fleet_id=fleet.id, limit=RUNG_AT_ONCE) if moved else []
        if added or removed:
            audit.record(
                session,
                "fleet.map",
                actor=actor,
                fleet=slug,
                stage=stage,
                added=added,
                removed=removed,
                jobs_moved=moved,
            )
    for dispatch_id in waiting:
        backend.bell.ring(slug, dispatch_id)
    backend.forget_catalog()
    backend.workers.forget_all()  # what each may run
    backend.news.tell_operators()
    return fleet


def _ids(session: Session, slugs: Sequence[str]) -> dict[str, UUID]:
    rows = session.execute(select(Workflow.slug, Workflow.id).where(Workflow.slug.in_(slugs)))
    found = dict(rows.tuples().all())
    problems = {
        f"workflows.{index}": [f"There is no workflow {slug!r}."]
        for index, slug in enumerate(slugs)
        if slug not in found
    }
    refuse_if(problems, "Some of these workflows do not exist.")
    return found


def _require_no_open_jobs(session: Session, fleet: Fleet, slugs: Sequence[str]) -> None:
    rows = session.execute(
        select(Workflow.slug, func.count())
        .join(Dispatch, Dispatch.workflow_id == Workflow.id)
        .where(Dispatch.fleet_id == fleet.id, Dispatch.status.in_(OPEN), Workflow.slug.in_(slugs))
        .group_by(Workflow.slug)
        .order_by(Workflow.slug)
    ).all()
    if rows:
        told = ", ".join(f"{slug} ({count})" for slug, count in rows)
        raise NotPossibleNow(
            f"Jobs wait for this fleet or run on it: {told}. Map the workflow to another fleet, "
            "which takes them along, or switch it off and wait for them to end."
        )
