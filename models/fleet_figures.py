"""How the fleets of a stage stand at this moment: the figures behind every metric of a fleet.

Each is computed here and nowhere else, for all fleets at once, in a handful of statements that
walk along indexes: a million finished jobs cost nothing, and of a million waiting ones at most
`MOST` of each fleet are counted.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, TextClause, case, func, select
from sqlalchemy.orm import Session

from models import dead_letters
from models.audit import AuditLog
from models.dispatches import BACKING_OFF, HAS_ENDED, LEASED, READY, Dispatch, DispatchStatus
from models.fleets import Fleet
from models.workers import Worker

MOST = 100_000  # jobs of a fleet that are counted in one state

SEEN = timedelta(minutes=5)  # a worker heard of since then is active
LATELY = timedelta(minutes=5)  # for what went wrong
DURATIONS = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class FleetFigures:
    slug: str
    stage: str
    is_active: bool
    waiting: int
    running: int
    oldest_waiting_seconds: float  # since the job was ordered
    active_workers: int
    available_capacity: int
    job_processing_p50: float | None  # seconds; None if no job completed
    completed: int
    failed: int
    lease_expired_count: int
    spot_interruption_count: int
    dead_letters_open: int

    @property
    def queue_depth(self) -> int:
        return self.waiting + self.running

    @property
    def backlog_per_instance(self) -> float:
        """Without an instance as if there were one: what waits is a backlog all the same."""
        return self.queue_depth / max(self.active_workers, 1)

    @property
    def error_rate(self) -> float:
        """A share. Jobs that were cancelled count neither way; where none ended, none failed."""
        return self.failed / max(self.completed + self.failed, 1)


def of_stage(session: Session, *, stage: str, now: datetime) -> list[FleetFigures]:
    """In the order of their slugs; also those that are switched off or have nothing to do."""
    rows = session.execute(_by_fleets_indexes(stage, now)).all()
    born = _created_at(session, [seq for row in rows for seq in (row.ready_seq, row.due_seq)])
    workers = _by_fleet(session, _workers(now))
    expired = _by_fleet(session, _noted(now, AuditLog.event == "job.lease_expired"))
    interrupted = _by_fleet(session, _noted(now, AuditLog.event == "job.requeue", _due_to_spot()))
    letters = dead_letters.open_by_fleet(session)
    return [
        FleetFigures(
            slug=row.slug,
            stage=stage,
            is_active=row.is_active,
            waiting=row.ready + row.backing_off,
            running=row.leased,
            oldest_waiting_seconds=_age(born, (row.ready_seq, row.due_seq), now),
            active_workers=_first(workers, row.id),
            available_capacity=_second(workers, row.id),
            job_processing_p50=row.median,
            completed=row.completed,
            failed=row.failed,
            lease_expired_count=_first(expired, row.id),
            spot_interruption_count=_first(interrupted, row.id),
            dead_letters_open=letters.get(row.id, 0),
        )
        for row in rows
    ]


def together(fleets: list[FleetFigures], *, stage: str) -> FleetFigures:
    """As if they were one; but medians can't be put together."""
    added = {
        name: sum(getattr(fleet, name) for fleet in fleets)
        for name in (
            "waiting",
            "running",
            "active_workers",
            "available_capacity",
            "completed",
            "failed",
            "lease_expired_count",
            "spot_interruption_count",
            "dead_letters_open",
        )
    }
    return FleetFigures(
        slug="",
        stage=stage,
        is_active=any(fleet.is_active for fleet in fleets),
        oldest_waiting_seconds=max((f.oldest_waiting_seconds for f in fleets), default=0.0),
        job_processing_p50=None,
        **added,
    )


def _by_fleets_indexes(stage: str, now: datetime) -> Select[Any]:
    """A subquery for each figure, so that it is read along an index that begins with the fleet.

    As joins they would be planned by how many rows a fleet has on the average, and read all.
    The oldest is looked for among those that are counted: a seq grows with every order.
    """
    return (
        select(
            Fleet.id,
            Fleet.slug,
            Fleet.is_active,
            _of_jobs(READY, func.count).label("ready"),
            _of_jobs(BACKING_OFF, func.count).label("backing_off"),
            _of_jobs(LEASED, func.count).label("leased"),
            _of_jobs(READY, func.min).label("ready_seq"),
            _of_jobs(BACKING_OFF, func.min).label("due_seq"),
            _ended(DispatchStatus.COMPLETED, now).label("completed"),
            _ended(DispatchStatus.FAILED, now).label("failed"),
            _median_duration(now).label("median"),
        )
        .where(Fleet.stage == stage)
        .order_by(Fleet.slug)
    )


def _of_jobs(state: TextClause, figure: Callable[..., Any]) -> ColumnElement[Any]:
    here = select(Dispatch.seq).where(Dispatch.fleet_id == Fleet.id, state).limit(MOST)
    rows = here.correlate(Fleet).subquery()
    return select(figure(rows.c.seq)).scalar_subquery()


def _created_at(session: Session, seqs: Iterable[int | None]) -> dict[int, datetime]:
    known = [seq for seq in seqs if seq is not None]
    rows = select(Dispatch.seq, Dispatch.created_at).where(Dispatch.seq.in_(known))
    return dict(session.execute(rows).tuples().all()) if known else {}


def _age(born: dict[int, datetime], seqs: Iterable[int | None], now: datetime) -> float:
    times = [born[seq] for seq in seqs if seq in born]
    return max((now - min(times)).total_seconds(), 0.0) if times else 0.0


def _workers(now: datetime) -> Select[Any]:
    """How many, and how many jobs more they could take. Those that drain take none."""
    free = Worker.max_concurrency - Worker.current_load
    is_free = (free > 0) & Worker.is_draining.is_(False)
    return (
        select(Worker.fleet_id, func.count(), func.sum(case((is_free, free), else_=0)))
        .where(Worker.last_seen_at >= now - SEEN, Worker.is_approved)
        .group_by(Worker.fleet_id)
    )


def _ended(status: DispatchStatus, now: datetime) -> ColumnElement[int]:
    """The status is no condition: or else an index of all that ever failed might be walked."""
    is_so = case((Dispatch.status == status, 1), else_=0)
    return (
        select(func.coalesce(func.sum(is_so), 0))
        .where(Dispatch.fleet_id == Fleet.id, HAS_ENDED, Dispatch.updated_at >= now - LATELY)
        .correlate(Fleet)
        .scalar_subquery()
    )


def _median_duration(now: datetime) -> ColumnElement[float]:
    """The middle one, or the mean of the two in the middle: in SQL that both databases speak."""
    seconds = Dispatch.duration_seconds
    numbered = (
        select(
            seconds,
            func.row_number().over(order_by=seconds).label("place"),
            func.count().over().label("number"),
        )
        .where(Dispatch.fleet_id == Fleet.id, HAS_ENDED)
        .where(Dispatch.updated_at >= now - DURATIONS)
        .where(Dispatch.status == DispatchStatus.COMPLETED, seconds.is_not(None))
        .correlate(Fleet)
        .subquery()
    )
    of = numbered.c
    in_the_middle = of.place.between((of.number + 1) // 2, (of.number + 2) // 2)
    return select(func.avg(of.duration_seconds)).where(in_the_middle).scalar_subquery()


def _noted(now: datetime, *events: ColumnElement[bool]) -> Select[Any]:
    """How often it was noted in the audit log."""
    return (
        select(Dispatch.fleet_id, func.count())
        .join(AuditLog, AuditLog.dispatch_id == Dispatch.id)
        .where(*events, AuditLog.at >= now - LATELY)
        .group_by(Dispatch.fleet_id)
    )


def _due_to_spot() -> ColumnElement[bool]:
    """By the word of the worker that gave it back."""
    return func.lower(AuditLog.details["reason"].as_string()).like("%spot%")


def _by_fleet(session: Session, query: Select[Any]) -> dict[UUID, tuple[Any, ...]]:
    return {fleet_id: tuple(figures) for fleet_id, *figures in session.execute(query)}


def _first(found: dict[UUID, tuple[Any, ...]], fleet_id: UUID) -> int:
    return int(found.get(fleet_id, (0, 0))[0])


def _second(found: dict[UUID, tuple[Any, ...]], fleet_id: UUID) -> int:
    return int(found.get(fleet_id, (0, 0))[1])
