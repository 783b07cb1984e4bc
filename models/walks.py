"""Everything that waits, user by user along an index: for sweeps that compare the two databases.

A page holds whole users, so the next one begins after the last user of this one, and however
long the queue is, a page costs the same. Of a user with more rows than a page some are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import (
    Select,
    TableValuedAlias,
    Uuid,
    and_,
    bindparam,
    func,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from models.dispatches import Dispatch
from models.effects import Provider
from models.fleets import Fleet
from models.jobs import IS_ACTIVE, Job, JobStatus
from models.tenants import Tenant

PAGE = 1000


@dataclass(frozen=True)
class OpenJob:
    id: UUID
    tenant_id: UUID
    user_id: UUID


@dataclass(frozen=True)
class WaitingDispatch:
    id: UUID
    job_id: UUID
    user_id: UUID
    pool: str


@dataclass(frozen=True)
class Lane:
    """All of a fleet that waits for a provider, whatever its priority."""

    fleet_id: UUID
    provider: str


Row = TypeVar("Row", OpenJob, WaitingDispatch)


def open_jobs(session: Session, *, after: UUID | None, size: int = PAGE) -> list[OpenJob]:
    """Jobs of a pool that have a dispatch and have not ended."""
    query = select(Job.id, Job.tenant_id, Job.user_id).where(
        IS_ACTIVE, Job.status != JobStatus.SUBMITTING
    )
    return _page([OpenJob(*row) for row in session.execute(_next(query, Job, after, size))], size)


def lanes(session: Session, *, stage: str) -> Iterator[Lane]:
    for fleet_id in session.scalars(select(Fleet.id).where(Fleet.stage == stage)):
        yield from (Lane(fleet_id, provider) for provider in Provider)


def waiting(
    session: Session, lane: Lane, *, after: UUID | None, size: int = PAGE
) -> list[WaitingDispatch]:
    query = (
        select(Dispatch.id, Dispatch.tenant_job_id, Dispatch.user_id, Tenant.pool)
        .join(Tenant, Tenant.id == Dispatch.tenant_id)
        .where(text("status = 'queued'"), Dispatch.fleet_id == lane.fleet_id)
        .where(Dispatch.provider == lane.provider)
    )
    found = session.execute(_next(query, Dispatch, after, size))
    return _page([WaitingDispatch(*row) for row in found], size)


def _next(query: Select[Any], table: Any, after: UUID | None, size: int) -> Select[Any]:
    if after is not None:
        query = query.where(table.user_id > after)
    return query.order_by(table.user_id).limit(size)


def _page(rows: list[Row], size: int) -> list[Row]:
    if len(rows) < size:
        return rows
    whole = [row for row in rows if row.user_id != rows[-1].user_id]
    return whole or rows


def dispatches_of(session: Session, jobs: Sequence[OpenJob]) -> dict[UUID, str]:
    """The states of their dispatches, by job, as far as there are any."""
    query = select(Dispatch.tenant_job_id, Dispatch.status)
    if session.get_bind().dialect.name == "postgresql":
        asked = _asked(jobs)
        is_one = (asked.c.tenant_id == Dispatch.tenant_id, asked.c.job_id == Dispatch.tenant_job_id)
        query = query.join(asked, and_(*is_one))
    else:
        pairs = [(job.tenant_id, job.id) for job in jobs]
        query = query.where(tuple_(Dispatch.tenant_id, Dispatch.tenant_job_id).in_(pairs))
    return dict(session.execute(query).tuples().all())


def _asked(jobs: Sequence[OpenJob]) -> TableValuedAlias:
    """Two arrays instead of a list of pairs, which takes five times as long to plan."""
    tenants = bindparam("tenants", [job.tenant_id for job in jobs], type_=ARRAY(Uuid()))
    ids = bindparam("jobs", [job.id for job in jobs], type_=ARRAY(Uuid()))
    found = func.unnest(tenants, ids).table_valued("tenant_id", "job_id", name="asked")
    return found.render_derived()
