"""Where jobs stand: progress, place in the queue, and when they may be done.

Cheap for many askers, with a million rows waiting: what is read for one answer is good for
all that are given within a moment (models/lane_places.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from models import lane_places, paces
from models.base import utcnow
from models.dispatches import Dispatch, DispatchStatus
from models.effects import Effect
from models.jobs import Job
from models.lane_places import Key
from models.paces import Pace
from tasks.backend import Backend

Lane = tuple[UUID, str]  # fleet, provider


@dataclass(frozen=True)
class Place:
    progress: float = 0.0
    attempts: int = 0
    position: int | None = None
    eta_seconds: float | None = None


NOWHERE = Place()


def places(backend: Backend, jobs: Sequence[Job]) -> dict[UUID, Place]:
    """The place of each of these jobs that has a dispatch."""
    if not jobs:
        return {}
    by_id = {job.id: job for job in jobs}
    wanted = [(job.tenant_id, job.id) for job in jobs]
    with backend.databases.central(read_only=True) as session:
        rows = session.scalars(
            select(Dispatch).where(tuple_(Dispatch.tenant_id, Dispatch.tenant_job_id).in_(wanted))
        ).all()
        view = _View(backend, session)
        return {row.tenant_job_id: view.place(row, by_id[row.tenant_job_id]) for row in rows}


@dataclass(frozen=True)
class _View:
    backend: Backend
    session: Session
    last_times: dict[UUID, float | None] = field(default_factory=dict)  # of effects

    def place(self, dispatch: Dispatch, job: Job) -> Place:
        if not job.is_active:
            return Place(progress=dispatch.progress, attempts=dispatch.attempts)
        position = self._position(dispatch)
        return Place(
            progress=dispatch.progress,
            attempts=dispatch.attempts,
            position=position,
            eta_seconds=self._eta(dispatch, job, position),
        )

    def _position(self, dispatch: Dispatch) -> int | None:
        if dispatch.status != DispatchStatus.QUEUED:
            return None
        lane = (dispatch.fleet_id, dispatch.provider)
        place = lane_places.place_in_head(dispatch, self._head(lane))
        if place is not None:
            return place
        rungs = self.backend.ladders.get(str(lane))
        if rungs is None:
            self.backend.checks.add(_read_ladders, (self.backend, lane))
            return lane_places.HEAD
        return lane_places.place_on_ladder(dispatch, rungs)

    def _head(self, lane: Lane) -> list[Key]:
        known: list[Key] | None = self.backend.heads.get(str(lane))
        if known is None:
            known = lane_places.head(self.session, fleet_id=lane[0], provider=lane[1])
            self.backend.heads.put(str(lane), known)
        return known

    def _eta(self, dispatch: Dispatch, job: Job, position: int | None) -> float | None:
        """Until it is done, as if everything took as long as it did lately."""
        pace = self._pace(dispatch.fleet_id)
        seconds = pace.job_seconds(dispatch.workflow_id) or self._last_time(job)
        if seconds is None:
            return None
        if dispatch.status == DispatchStatus.LEASED:
            return round(seconds * (1 - dispatch.progress), 1)
        wait = pace.wait_seconds(position or 0, job_seconds=pace.seconds or seconds)
        return round(wait + seconds, 1)

    def _last_time(self, job: Job) -> float | None:
        """Of an effect whose fleet has done nothing lately."""
        if job.effect_id not in self.last_times:
            seconds = select(Effect.last_processing_time_seconds).where(Effect.id == job.effect_id)
            self.last_times[job.effect_id] = self.session.scalar(seconds)
        return self.last_times[job.effect_id]

    def _pace(self, fleet_id: UUID) -> Pace:
        known: Pace | None = self.backend.paces.get(str(fleet_id))
        if known is None:
            since = utcnow() - timedelta(seconds=self.backend.settings.worker_gone_seconds)
            known = paces.of_fleet(self.session, fleet_id, present_since=since)
            self.backend.paces.put(str(fleet_id), known)
        return known


def _read_ladders(asked: list[tuple[Backend, Lane]]) -> None:
    """In a thread of its own: whoever asks first does not wait for a walk along all that wait."""
    for backend, lane in dict.fromkeys(asked):
        if backend.ladders.get(str(lane)) is None:
            with backend.databases.central(read_only=True) as session:
                rungs = lane_places.ladder(session, fleet_id=lane[0], provider=lane[1])
            backend.ladders.put(str(lane), rungs)
