"""Dispatches and dead letters as operators see them: with the names of what they belong to."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Select, false, select
from sqlalchemy.orm import Session

from models import dispatches
from models.audit import AuditLog
from models.dead_letters import DeadLetter
from models.dispatches import Dispatch
from models.errors import DATABASE_AWAY, NotFound
from models.fleets import Fleet
from models.jobs import Job
from models.workflows import Workflow
from tasks import money
from tasks.backend import Backend

logger = logging.getLogger(__name__)

LONGEST_TIMELINE = 500  # rows, the newest: a job may be given back any number of times


@dataclass(frozen=True)
class ShownDispatch:
    dispatch: Dispatch
    fleet: Fleet
    workflow: str
    letter: DeadLetter | None  # if it became one


@dataclass(frozen=True)
class ShownLetter:
    letter: DeadLetter
    about: ShownDispatch


def dispatches_wanted(
    session: Session,
    *,
    status: str | None = None,
    fleet: str | None = None,
    tenant_id: UUID | None = None,
) -> Select[tuple[Dispatch]]:
    query = select(Dispatch)
    if status is not None:
        query = query.where(Dispatch.status == status)
    return _of(session, query, fleet, tenant_id)


def letters_wanted(
    session: Session,
    *,
    status: str | None = None,
    fleet: str | None = None,
    tenant_id: UUID | None = None,
) -> Select[tuple[DeadLetter]]:
    query = select(DeadLetter)
    if status is not None:
        query = query.where(DeadLetter.status == status)
    if fleet is None and tenant_id is None:
        return query
    query = query.join(Dispatch, Dispatch.id == DeadLetter.dispatch_id)
    return _of(session, query, fleet, tenant_id)


def _of(
    session: Session, query: Select[Any], fleet: str | None, tenant_id: UUID | None
) -> Select[Any]:
    if fleet is not None:
        # Looked up first: the database then knows whether it asks for many rows or for none.
        ids = session.scalars(select(Fleet.id).where(Fleet.slug == fleet)).all()
        query = query.where(Dispatch.fleet_id.in_(ids) if ids else false())
    if tenant_id is not None:
        query = query.where(Dispatch.tenant_id == tenant_id)
    return query


def dispatches_shown(session: Session, found: Sequence[Dispatch]) -> list[ShownDispatch]:
    fleets = _by_id(session, Fleet, {one.fleet_id for one in found})
    workflows = _by_id(session, Workflow, {one.workflow_id for one in found})
    ids = {one.id for one in found}
    kept = session.scalars(select(DeadLetter).where(DeadLetter.dispatch_id.in_(ids)))
    letters = {letter.dispatch_id: letter for letter in kept}
    return [
        ShownDispatch(
            one, fleets[one.fleet_id], workflows[one.workflow_id].slug, letters.get(one.id)
        )
        for one in found
    ]


def letters_shown(session: Session, found: Sequence[DeadLetter]) -> list[ShownLetter]:
    about = _by_id(session, Dispatch, {one.dispatch_id for one in found})
    shown = {one.dispatch.id: one for one in dispatches_shown(session, list(about.values()))}
    return [ShownLetter(one, shown[one.dispatch_id]) for one in found]


def _by_id(session: Session, table: Any, ids: Iterable[UUID]) -> dict[UUID, Any]:
    return {row.id: row for row in session.scalars(select(table).where(table.id.in_(set(ids))))}


def timeline(session: Session, dispatch_id: UUID) -> list[AuditLog]:
    """What happened to it, oldest first."""
    newest = (
        select(AuditLog)
        .where(AuditLog.dispatch_id == dispatch_id)
        .order_by(AuditLog.at.desc(), AuditLog.id.desc())
        .limit(LONGEST_TIMELINE)
    )
    return list(reversed(session.scalars(newest).all()))


def job_of(backend: Backend, dispatch: Dispatch) -> Job | None:
    """None if its row is gone, or its pool away: what central knows is shown all the same."""
    try:
        with backend.databases.tenant(dispatch.tenant_id) as session:
            return session.get(Job, dispatch.tenant_job_id)
    except (*DATABASE_AWAY, OSError) as error:
        logger.warning("Job %s can't be shown: %s", dispatch.tenant_job_id, error)
        return None


def find(backend: Backend, any_id: UUID) -> Dispatch:
    """By its own id, or by that of its job: that is the one that users know."""
    with backend.databases.central(read_only=True) as session:
        if dispatch := session.get(Dispatch, any_id):
            return dispatch
    job = money.find_job(backend, any_id)
    with backend.databases.central(read_only=True) as session:
        dispatch = dispatches.find_by_job(session, job.tenant_id, job.id)
    if dispatch is None:
        raise NotFound("The job has no dispatch (yet).")
    return dispatch
