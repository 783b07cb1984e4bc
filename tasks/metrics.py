"""The figures of the house, once a minute: counted, kept for /metrics, and sent to CloudWatch.

However many beats there are, one of them has the turn of a minute, by the clock of the central
database. Sums (a lease expired) are sent as what is owed: counted since counting began, less
what was sent. So a minute that is missed is made up for by the next, and none is sent twice;
but for one whose answer got lost, or whose sender died before it could note that it was sent.
"""

import logging
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models import control_turns, fleet_figures
from models.fleet_figures import FleetFigures
from models.tallies import Submission
from tasks import cloudwatch, counting
from tasks.backend import Backend
from tasks.cloudwatch import Datum
from tasks.counting import LEASES, Counted, Numbers

logger = logging.getLogger(__name__)

TURN = "figures"
APART_SECONDS = 45  # turns are no closer than this
LATE_SECONDS = 15  # after this, sums would not be sent before the next turn begins


@dataclass
class Published:
    fleets: int = 0
    figures: int = 0


@dataclass(frozen=True)
class Turn:
    at: datetime
    began: float  # as time.monotonic() has it
    kept: dict[str, Any]  # by the turn before

    @property
    def minute(self) -> datetime:
        return self.at.replace(second=0, microsecond=0)

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.began > LATE_SECONDS


def run_once(backend: Backend, *, now: datetime | None = None) -> Published:
    turn = _take_turn(backend, now)
    if turn is None:
        return Published()
    counted = counting.count(backend, turn.kept.get("sources", {}), now=turn.at)
    sent = turn.kept.get("sent", counted.settled)  # at first, of the last minute
    if not _keep(backend, turn, counted, sent=sent):
        logger.warning("Counting took longer than a minute; somebody else has gone on.")
        return Published()
    if not backend.settings.cloudwatch_namespace:
        _keep(backend, turn, counted, sent=counted.totals, finished_at=turn.at)
        return Published()
    return _publish(backend, turn, counted, sent)


def _take_turn(backend: Backend, now: datetime | None) -> Turn | None:
    began = time.monotonic()
    with backend.databases.central() as session:
        now = now or control_turns.clock(session)
        # Not in the minute of the turn before, and not right after it.
        seconds = max(APART_SECONDS, now.second + now.microsecond / 1e6 + 1e-6)
        if not control_turns.take(session, TURN, seconds=seconds, now=now):
            return None
        turn = control_turns.find(session, TURN)
        return Turn(now, began, dict(turn.done) if turn else {})


def _keep(backend: Backend, turn: Turn, counted: Counted, *, sent: Numbers, **values: Any) -> bool:
    """Unless somebody has taken the next turn, and gone on from where we had."""
    done = turn.kept | {
        "sources": {name: source.to_json() for name, source in counted.sources.items()},
        "sent": sent,
    }
    with backend.databases.central() as session:
        return control_turns.keep(session, TURN, taken_at=turn.at, done=done, **values)


def _publish(backend: Backend, turn: Turn, counted: Counted, sent: Numbers) -> Published:
    with backend.databases.central(read_only=True) as session:
        stage = backend.settings.stage
        fleets = fleet_figures.of_stage(session, stage=stage, now=turn.at)
    groups = [_of_house(stage, counted, sent), *(_of_fleet(one, counted, sent) for one in fleets)]
    if turn.is_late:
        logger.warning("Counting took long: sums are sent with the next minute.")
        groups = [[datum for datum in group if not datum.owed] for group in groups]
    taken = cloudwatch.send(backend.settings, groups, at=turn.minute)
    totals = counted.totals
    paid = {total: totals.get(total, 0) for datum in taken for total in datum.owed}
    if taken:
        turn.kept["published_at"] = turn.at.isoformat()
    _keep(backend, turn, counted, sent=sent | paid, finished_at=turn.at)
    return Published(len(fleets), len(taken))


def _of_fleet(fleet: FleetFigures, counted: Counted, sent: Numbers) -> list[Datum]:
    expired = f"{LEASES}{fleet.slug}"
    values: dict[str, tuple[float | None, str]] = {
        "QueueDepth": (fleet.queue_depth, "Count"),  # 0 too: or else no fleet ever goes to sleep
        "BacklogPerInstance": (fleet.backlog_per_instance, "Count"),
        "ActiveWorkers": (fleet.active_workers, "Count"),
        "AvailableCapacity": (fleet.available_capacity, "Count"),
        "JobProcessingP50": (fleet.job_processing_p50, "Seconds"),
        "ErrorRate": (fleet.error_rate, "None"),
        "LeaseExpiredCount": (_owed(expired, counted, sent), "Count"),
        "SpotInterruptionCount": (fleet.spot_interruption_count, "Count"),
    }
    return [
        Datum(
            name=name,
            unit=unit,
            value=value,
            dimensions={"FleetSlug": fleet.slug, "Stage": fleet.stage},
            owed=(expired,) if name == "LeaseExpiredCount" else (),
        )
        for name, (value, unit) in values.items()
        if value is not None  # there is no median of nothing
    ]


def _of_house(stage: str, counted: Counted, sent: Numbers) -> list[Datum]:
    def total(name: str, of: str) -> Datum:
        value = _owed(of, counted, sent)
        return Datum(name=name, unit="Count", value=value, dimensions=dimensions, owed=(of,))

    dimensions = {"Stage": stage}
    sums = [total("OrphanedJobsDetected", "orphans")]
    sums.append(total("RunPodSubmissionFailures", "runpod_failures"))
    if number := int(_owed("submissions", counted, sent)):
        newest = sorted(counted.submissions, key=lambda one: one.at)[-number:]
        sums.append(
            Datum(
                name="JobSubmissionLatency",
                unit="Milliseconds",
                statistics=_statistics(number, newest, counted, sent),
                dimensions=dimensions,
                owed=("submissions", "submission_milliseconds"),
            )
        )
    return sums


def _statistics(
    number: int, newest: list[Submission], counted: Counted, sent: Numbers
) -> dict[str, float]:
    """Of all that are owed. The extremes are those of the newest, if a minute was missed."""
    total = _owed("submission_milliseconds", counted, sent)
    times = [one.milliseconds for one in newest] or [total / number]
    return {
        "SampleCount": number,
        "Sum": total,
        "Minimum": min(times),
        "Maximum": max(times),
    }


def _owed(total: str, counted: Counted, sent: Numbers) -> float:
    return max(counted.totals.get(total, 0) - sent.get(total, 0), 0)
