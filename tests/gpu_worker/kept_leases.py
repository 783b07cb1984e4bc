"""A lease keeper at work, and what tests of it look at."""

from collections.abc import Callable

from gpu_worker.lease_keeper import Held, LeaseKeeper
from tests.gpu_worker.backend_replies import Json
from tests.gpu_worker.backend_stand_in import BackendStandIn
from tests.gpu_worker.cached import wait_for

SOON, NEVER = 0.03, 3600.0


class Kept:
    """Keepers of one test, closed after it."""

    def __init__(self, webapp: BackendStandIn) -> None:
        self.backend = webapp.backend()
        self.draining: list[bool] = []
        self.refused: list[bool] = []
        self._started: list[LeaseKeeper] = []

    def start(
        self,
        *,
        idle: float = NEVER,
        first: float = SOON,
        on_draining: Callable[[bool], None] | None = None,
    ) -> LeaseKeeper:
        keeper = LeaseKeeper(
            self.backend,
            idle_seconds=idle,
            on_draining=on_draining or self.draining.append,
            on_refused=self.refused.append,
            first_seconds=first,
            again_seconds=SOON,
        )
        keeper.start()
        self._started.append(keeper)
        return keeper

    def close(self) -> None:
        for keeper in self._started:
            keeper.close()
            keeper._thread.join(10)
            assert not keeper._thread.is_alive()


def beats(webapp: BackendStandIn) -> list[Json]:
    return [asked.body for asked in webapp.calls("heartbeat")]


def wait_for_beats(webapp: BackendStandIn, number: int) -> list[Json]:
    wait_for(lambda: len(beats(webapp)) >= number)
    return beats(webapp)


def interrupted(held: Held) -> str:
    assert held.stop.wait(10)
    return held.why
