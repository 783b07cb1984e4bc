"""In which order waiting dispatches are served, and the lease that serves them.

Priority first, then turns, then age. A dispatch gets its turn when it joins a lane (one
fleet, provider and priority): the lowest turn now waiting there, but behind its own user's
last one. So users take turns, each user's jobs stay in order, no lock is shared between
users, and a lease is one step along one index, with ten rows waiting or a million.

Every leased row has a turn no higher than any waiting row of its lane. Hence a row that is
given back keeps turn and seq, and is next.
"""

from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    Insert,
    Uuid,
    and_,
    any_,
    bindparam,
    case,
    func,
    literal,
    null,
    or_,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from models.base import changed_rows, row_id, utcnow
from models.dispatches import (
    BACKING_OFF,
    LEASED,
    READY,
    WENT_SILENT,
    Dispatch,
    DispatchStatus,
    dispatch_seq,
    locked,
)
from models.errors import NotPossibleNow

PRIORITY_LIMIT = 1_000_000  # either way, for people; `to_front` may go beyond


def join(
    session: Session,
    *,
    tenant_id: UUID,
    tenant_job_id: UUID,
    user_id: UUID,
    workflow_id: UUID,
    fleet_id: UUID,
    provider: str,
    priority: int = 0,
    max_attempts: int = 3,
    traceparent: str | None = None,
) -> UUID | None:
    """Queue a job, if it has no dispatch yet. None if it had one."""
    dispatch_id = row_id()
    values = {
        "id": dispatch_id,
        "tenant_id": tenant_id,
        "tenant_job_id": tenant_job_id,
        "user_id": user_id,
        "workflow_id": workflow_id,
        "fleet_id": fleet_id,
        "provider": provider,
        "priority": priority,
        "max_attempts": max_attempts,
        "traceparent": traceparent,
        "now": utcnow(),
    }
    statement = join_statement(session.get_bind().dialect.name)
    made = changed_rows(session.connection().execute(statement, values))
    return dispatch_id if made else None


@cache
def join_statement(dialect: str) -> Insert:
    """Takes what `join` gives it; hot_path.py runs the same statement with less around it."""
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    given = ("id", "tenant_id", "tenant_job_id", "user_id", "workflow_id", "fleet_id", "provider")
    table = Dispatch.__table__
    values: dict[str, Any] = {
        name: bindparam(name, type_=table.c[name].type)
        for name in (*given, "priority", "max_attempts", "traceparent")
    }
    now = bindparam("now", type_=Dispatch.created_at.type)
    values |= {
        "seq": _next_seq(dialect),
        "turn": _turn_in(
            dialect, *(values[n] for n in ("fleet_id", "provider", "priority", "user_id"))
        ),
        "status": literal(DispatchStatus.QUEUED),
        "attempts": literal(0),
        "progress": literal(0.0),
        "created_at": now,
        "updated_at": now,
    }
    return (
        insert(Dispatch.__table__)  # type: ignore[arg-type]
        .values(values)
        .on_conflict_do_nothing(index_elements=["tenant_id", "tenant_job_id"])
    )


def _next_seq(dialect: str) -> Any:
    if dialect == "postgresql":
        return dispatch_seq.next_value()
    # SQLite: the whole transaction holds the write lock, so this can't collide.
    return select(func.coalesce(func.max(Dispatch.seq), 0) + 1).scalar_subquery()


def _turn_in(dialect: str, fleet_id: Any, provider: Any, priority: Any, user_id: Any) -> Any:
    """The turn of a row that joins a lane now."""
    here = and_(
        Dispatch.fleet_id == fleet_id, Dispatch.provider == provider, Dispatch.priority == priority
    )
    lowest_waiting = (
        select(Dispatch.turn)
        .where(here, READY)
        .order_by(Dispatch.turn, Dispatch.seq)
        .limit(1)
        .scalar_subquery()
    )
    # With nobody waiting, start where the running ones are: one of them may come back.
    highest_leased = select(func.max(Dispatch.turn)).where(here, LEASED).scalar_subquery()
    own_last = (
        select(func.max(Dispatch.turn))
        .where(here, Dispatch.user_id == user_id, text("status = 'queued'"))
        .scalar_subquery()
    )
    larger = func.greatest if dialect == "postgresql" else func.max
    return larger(func.coalesce(lowest_waiting, highest_leased, 0), func.coalesce(own_last + 1, 0))


def lease(
    session: Session,
    *,
    fleet_id: UUID,
    providers: list[str],
    workflow_ids: list[UUID],
    worker_id: str,
    lease_seconds: int,
    now: datetime | None = None,
) -> Dispatch | None:
    """Hand the best waiting dispatch to a worker. One statement, one index step."""
    if not providers or not workflow_ids:
        return None
    values = lease_values(fleet_id, workflow_ids, worker_id, lease_seconds, now or utcnow())
    statement = lease_statement(session.get_bind().dialect.name, tuple(sorted(set(providers))))
    return session.scalars(statement, values).one_or_none()


def lease_values(
    fleet_id: UUID, workflow_ids: list[UUID], worker_id: str, lease_seconds: int, now: datetime
) -> dict[str, Any]:
    return {
        "fleet": fleet_id,
        "workflows": workflow_ids,
        "worker": worker_id,
        "token": uuid4(),
        "now": now,
        "until": now + timedelta(seconds=lease_seconds),
    }


@cache
def lease_statement(dialect: str, providers: tuple[str, ...]) -> Any:
    """Takes `lease_values`; hot_worker.py runs the same statement with less around it."""
    now = bindparam("now", type_=Dispatch.created_at.type)
    fleet = bindparam("fleet", type_=Dispatch.fleet_id.type)
    suits = and_(Dispatch.fleet_id == fleet, _one_of_workflows(dialect))
    candidates = [_ready(suits, provider) for provider in providers]
    candidates += [_due(suits, providers, now), _abandoned(suits, providers, now)]
    pool = union_all(*(select(candidate) for candidate in candidates)).subquery()
    was_leased = Dispatch.status == DispatchStatus.LEASED
    best = (
        select(pool.c.id)
        .order_by(pool.c.priority.desc(), pool.c.turn, pool.c.seq)
        .limit(1)
        .scalar_subquery()
    )
    return (
        update(Dispatch)
        .where(Dispatch.id == best)
        .values(
            status=DispatchStatus.LEASED,
            lease_token=bindparam("token", type_=Dispatch.fleet_id.type),
            lease_expires_at=bindparam("until", type_=Dispatch.created_at.type),
            leased_at=now,
            updated_at=now,
            worker_id=bindparam("worker", type_=Dispatch.provider.type),
            attempts=Dispatch.attempts + 1,
            available_at=None,
            progress=0.0,
            current_node=None,
            upload_names=null(),
            # It was leased before: its holder went silent, and `_abandoned` found it.
            lease_lost_at=case((was_leased, now), else_=Dispatch.lease_lost_at),
            last_error=case((was_leased, WENT_SILENT), else_=Dispatch.last_error),
        )
        .returning(Dispatch)
        .execution_options(synchronize_session=False)
    )


def _one_of_workflows(dialect: str) -> Any:
    """The strict match. An array is one parameter, however many workflows a worker has."""
    if dialect == "postgresql":
        ids = bindparam("workflows", type_=postgresql.ARRAY(Uuid()))
        return Dispatch.workflow_id == any_(ids)
    return Dispatch.workflow_id.in_(bindparam("workflows", expanding=True))


def _one_of(providers: tuple[str, ...]) -> Any:
    return or_(*(Dispatch.provider == provider for provider in providers))


def _candidate(name: str, *conditions: Any) -> Any:
    """The first row in order that nobody else is looking at."""
    return (
        select(Dispatch.id, Dispatch.priority, Dispatch.turn, Dispatch.seq)
        .where(*conditions)
        .order_by(Dispatch.priority.desc(), Dispatch.turn, Dispatch.seq)
        .limit(1)
        .with_for_update(skip_locked=True)
        .cte(name)
        .prefix_with("MATERIALIZED")
    )


def _ready(suits: Any, provider: str) -> Any:
    return _candidate(f"ready_{provider}", suits, Dispatch.provider == provider, READY)


def _due(suits: Any, providers: tuple[str, ...], now: Any) -> Any:
    """Its back-off is over."""
    return _candidate("due", suits, _one_of(providers), BACKING_OFF, Dispatch.available_at <= now)


def _abandoned(suits: Any, providers: tuple[str, ...], now: Any) -> Any:
    """Its worker went silent, and it may be tried once more."""
    return _candidate(
        "abandoned",
        suits,
        _one_of(providers),
        LEASED,
        Dispatch.lease_expires_at <= now,
        Dispatch.attempts < Dispatch.max_attempts,
    )


def set_priority(session: Session, dispatch_id: UUID, *, priority: int) -> Dispatch:
    """Move a waiting dispatch to another lane, at the end of its user's turn there."""
    dispatch = _waiting(session, dispatch_id)
    if dispatch.priority != priority:
        change_lane(session, dispatch, fleet_id=dispatch.fleet_id, priority=priority)
    return dispatch


def change_lane(session: Session, dispatch: Dispatch, *, fleet_id: UUID, priority: int) -> None:
    """The row, which waits and is locked, joins another lane."""
    lane = (fleet_id, dispatch.provider, priority, dispatch.user_id)
    turn = _turn_in(session.get_bind().dialect.name, *lane)
    dispatch.turn = session.scalars(select(turn)).one()
    dispatch.fleet_id, dispatch.priority = fleet_id, priority
    dispatch.updated_at = utcnow()
    session.flush()


def _waiting(session: Session, dispatch_id: UUID) -> Dispatch:
    dispatch = locked(session, dispatch_id)
    if dispatch.status != DispatchStatus.QUEUED:
        raise NotPossibleNow(f"This is for jobs that wait; this one is {dispatch.status}.")
    return dispatch


def to_front(session: Session, dispatch_id: UUID) -> Dispatch:
    """God mode: ahead of everything that waits now. What runs is not disturbed."""
    dispatch = _waiting(session, dispatch_id)
    highest = session.scalar(
        select(Dispatch.priority)
        .where(
            Dispatch.fleet_id == dispatch.fleet_id,
            Dispatch.provider == dispatch.provider,
            Dispatch.id != dispatch.id,
            text("status = 'queued'"),
        )
        .order_by(Dispatch.priority.desc())
        .limit(1)
    )
    if highest is None or highest < dispatch.priority:
        return dispatch
    return set_priority(session, dispatch_id, priority=highest + 1)


def make_due(session: Session, dispatch_id: UUID) -> Dispatch:
    """One that backs off waits for nothing but its turn, which it has kept."""
    dispatch = _waiting(session, dispatch_id)
    if dispatch.available_at is not None:
        dispatch.available_at, dispatch.updated_at = None, utcnow()
        session.flush()
    return dispatch


def move(session: Session, *, workflow_id: UUID, source: UUID, target: UUID) -> int:
    """A workflow moved to another fleet: what waits for it moves along (see stranded.py)."""
    moved = session.execute(
        update(Dispatch)
        .where(
            Dispatch.workflow_id == workflow_id,
            Dispatch.fleet_id == source,
            Dispatch.status == DispatchStatus.QUEUED,
        )
        .values(fleet_id=target, updated_at=utcnow())
    )
    return changed_rows(moved)


def waiting(
    session: Session, *, fleet_id: UUID, limit: int, now: datetime | None = None
) -> list[UUID]:
    """Dispatches that a fleet could lease now, at most so many."""
    here = Dispatch.fleet_id == fleet_id
    due = and_(here, BACKING_OFF, Dispatch.available_at <= (now or utcnow()))
    ready = select(Dispatch.id).where(here, READY).limit(limit)
    backed_off = select(Dispatch.id).where(due).limit(limit)
    return [*session.scalars(ready), *session.scalars(backed_off)][:limit]
