"""How fast a fleet works: how long its last jobs took, and how many workers it has."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.dispatches import HAS_ENDED, LEASED, Dispatch, DispatchStatus
from models.workers import count_present

LAST = 200  # jobs that tell how long the next will take


@dataclass(frozen=True)
class Pace:
    workers: int = 0
    running: int = 0
    seconds: float | None = None  # that a job takes, on the average; None until one has run
    seconds_of: dict[UUID, float] = field(default_factory=dict)  # by workflow

    def job_seconds(self, workflow_id: UUID) -> float | None:
        return self.seconds_of.get(workflow_id, self.seconds)

    def wait_seconds(self, ahead: int, *, job_seconds: float) -> float:
        """Until a job with so many ahead of it begins, if each takes so long. Whoever runs now is
        half done, on the average. A fleet that sleeps is taken for one worker."""
        workers = max(self.workers, 1)
        idle = max(workers - self.running, 0)
        return 0.0 if ahead < idle else (ahead - idle + 0.5) * job_seconds / workers


def of_fleet(session: Session, fleet_id: UUID, *, present_since: datetime) -> Pace:
    here = Dispatch.fleet_id == fleet_id
    last = session.execute(
        select(Dispatch.workflow_id, Dispatch.duration_seconds)
        .where(here, HAS_ENDED)
        .order_by(Dispatch.updated_at.desc())
        .limit(LAST)
        .add_columns(Dispatch.status)
    ).all()
    durations: dict[UUID, list[float]] = defaultdict(list)
    for workflow_id, seconds, status in last:
        if status == DispatchStatus.COMPLETED and seconds is not None:
            durations[workflow_id].append(seconds)
    everything = [seconds for some in durations.values() for seconds in some]
    running = select(func.count()).select_from(Dispatch).where(here, LEASED)
    return Pace(
        workers=count_present(session, fleet_id=fleet_id, gone_before=present_since),
        running=session.scalars(running).one(),
        seconds=fmean(everything) if everything else None,
        seconds_of={workflow_id: fmean(some) for workflow_id, some in durations.items()},
    )
