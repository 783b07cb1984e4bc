"""What /metrics and the console show: figures of this moment, and what was counted lately."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models import control_turns, fleet_figures, webhook_figures
from models.fleet_figures import FleetFigures
from models.webhook_figures import WebhookFigures
from tasks import control, metrics
from tasks.backend import Backend
from tasks.counting import Counted, Numbers

logger = logging.getLogger(__name__)

WAIT_SECONDS = 2.0  # for figures that are being read; after that the last ones must do
OLD_SECONDS = 60.0  # figures older than this are none


@dataclass(frozen=True)
class Figures:
    at: datetime
    stage: str
    fleets: list[FleetFigures]
    webhooks: WebhookFigures
    totals: Numbers  # since counting began
    differences: dict[str, int]  # by pool: what its wallets hold more than its ledger says
    counted_at: datetime | None
    is_publishing: bool  # to CloudWatch
    published_at: datetime | None
    control: list[dict[str, Any]]  # as control.status has it


def read(backend: Backend) -> Figures:
    """From the central database alone: tenant pools are counted once a minute (metrics.py)."""
    settings = backend.settings
    with backend.databases.central(read_only=True) as session:
        now = control_turns.clock(session)
        turn = control_turns.find(session, metrics.TURN)
        fleets = fleet_figures.of_stage(session, stage=settings.stage, now=now)
        webhooks = webhook_figures.read(session, now=now)
    kept = turn.done if turn else {}
    counted = Counted.from_json(kept.get("sources", {}))
    published_at = kept.get("published_at")
    return Figures(
        at=now,
        stage=settings.stage,
        fleets=fleets,
        webhooks=webhooks,
        totals=counted.totals,
        differences=counted.differences,
        counted_at=turn.finished_at if turn else None,
        is_publishing=bool(settings.cloudwatch_namespace),
        published_at=datetime.fromisoformat(published_at) if published_at else None,
        control=control.status(backend.databases, settings, now=now),
    )


class Recent:
    """Figures as they were read a moment ago, by a thread of its own.

    One reads for all who ask, and nobody waits long: a database that hangs holds up neither the
    threads of a web server nor what else there is to tell.
    """

    def __init__(self, read: Callable[[], Figures], *, seconds: float) -> None:
        self._read, self._seconds = read, seconds
        self._lock = threading.Lock()
        self._reading: threading.Thread | None = None
        self._found: tuple[float, Figures] | None = None

    def get(self) -> Figures | None:
        """None if there are none, or none that are not too old to be told."""
        if (figures := self._younger_than(self._seconds)) is not None:
            return figures
        self._begin().join(WAIT_SECONDS)
        return self._younger_than(OLD_SECONDS)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.join(WAIT_SECONDS)

    def _younger_than(self, seconds: float) -> Figures | None:
        found = self._found
        return found[1] if found and time.monotonic() - found[0] < seconds else None

    def _begin(self) -> threading.Thread:
        with self._lock:
            if self._reading is None or not self._reading.is_alive():
                self._reading = threading.Thread(target=self._run, name="figures", daemon=True)
                self._reading.start()
            return self._reading

    def _run(self) -> None:
        try:
            self._found = time.monotonic(), self._read()
        except Exception as error:
            logger.error("Figures could not be read: %s", error)
