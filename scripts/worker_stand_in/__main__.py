"""A fleet of GPU workers in one process, and customers who keep it busy.

    python -m scripts.worker_stand_in <SCENE.json

Says a line of JSON when it begins to measure, when it has measured, and when every job has
ended; the last one is the report.
"""

import asyncio
import json
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.worker_stand_in import customers
from scripts.worker_stand_in.customers import Customer
from scripts.worker_stand_in.tally import Tally
from scripts.worker_stand_in.wire import Wire
from scripts.worker_stand_in.worker import House, Worker

REGISTERING = 8  # at once: machines of a fleet do not start in the same second
STORAGE_CONNECTIONS = 16
DRAIN_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is played. Times are the workers', but for `warm_up_seconds` and `seconds`."""

    url: str
    storage_url: str
    redis_url: str
    fleet: str
    secret: str
    stage: str
    workers: int
    prefix: str  # of the workers' names
    pace: float
    job_seconds: float
    effect: str
    orders_per_second: float
    customers: list[dict[str, str]]
    warm_up_seconds: float
    seconds: float


async def play(scene: Scene) -> None:
    tally = Tally()
    storage: asyncio.Queue[Wire] = asyncio.Queue()
    for _ in range(STORAGE_CONNECTIONS):
        storage.put_nowait(Wire(scene.storage_url, tally))
    house = House(
        url=scene.url,
        redis_url=scene.redis_url,
        fleet=scene.fleet,
        secret=scene.secret,
        stage=scene.stage,
        pace=scene.pace,
        job_seconds=scene.job_seconds,
        tally=tally,
        storage=storage,
    )
    workers = [Worker(house, f"{scene.prefix}-{number}") for number in range(scene.workers)]
    begin = time.perf_counter()
    await _a_few_at_once([worker.register() for worker in workers])
    registered_per_second = len(workers) / (time.perf_counter() - begin)
    leaving = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.work(leaving))
        lag = group.create_task(tally.watch_lag())
        await _measure(scene, tally)
        await _drain(scene, tally)
        lag.cancel()
        leaving.set()
    await _a_few_at_once([worker.leave() for worker in workers])
    _say("report", registered_per_second=registered_per_second, **tally.report())


async def _measure(scene: Scene, tally: Tally) -> None:
    closing = asyncio.Event()
    ordering = asyncio.create_task(
        customers.order(
            scene.url,
            tally,
            [Customer(**one) for one in scene.customers],
            effect=scene.effect,
            per_second=scene.orders_per_second,
            closing=closing,
        )
    )
    for at, seconds in (("measuring", scene.warm_up_seconds), ("measured", scene.seconds)):
        await asyncio.wait([ordering], timeout=seconds)
        if ordering.done():
            await ordering  # says what went wrong
        tally.begin() if at == "measuring" else tally.end()
        _say(at)
    closing.set()
    await ordering


async def _drain(scene: Scene, tally: Tally) -> None:
    """Until every job that was ordered has ended, or should have long ago."""
    deadline = time.monotonic() + DRAIN_SECONDS + 3 * scene.job_seconds / scene.pace
    while tally.completed < tally.ordered and time.monotonic() < deadline:
        await asyncio.sleep(0.1)


async def _a_few_at_once(steps: Sequence[Coroutine[Any, Any, None]]) -> None:
    room = asyncio.Semaphore(REGISTERING)

    async def take(step: Coroutine[Any, Any, None]) -> None:
        async with room:
            await step

    async with asyncio.TaskGroup() as group:
        for step in steps:
            group.create_task(take(step))


def _say(at: str, **facts: Any) -> None:
    print(json.dumps({"at": at, **facts}), flush=True)


if __name__ == "__main__":
    asyncio.run(play(Scene(**json.load(sys.stdin))))
