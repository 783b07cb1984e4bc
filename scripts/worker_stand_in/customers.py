"""Orders at an even rate, over a few kept connections, whatever becomes of the last one."""

import asyncio
import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.worker_stand_in.tally import Tally
from scripts.worker_stand_in.wire import Unreachable, Wire

CONNECTIONS = 8


@dataclass(frozen=True)
class Customer:
    token: str
    video_id: str


async def order(
    url: str,
    tally: Tally,
    customers: Sequence[Customer],
    *,
    effect: str,
    per_second: float,
    closing: asyncio.Event,
) -> None:
    """Until the shop closes. An order that is not accepted stops everything: it should be."""
    wires: asyncio.Queue[Wire] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        wires.put_nowait(Wire(url, tally))
    loop = asyncio.get_running_loop()
    due = loop.time()
    async with asyncio.TaskGroup() as orders:
        for customer in itertools.cycle(customers):
            due += 1 / per_second
            await asyncio.sleep(max(due - loop.time(), 0))
            if closing.is_set():
                return
            wire = await wires.get()
            orders.create_task(_order(wires, wire, tally, customer, effect))


async def _order(
    wires: "asyncio.Queue[Wire]", wire: Wire, tally: Tally, customer: Customer, effect: str
) -> None:
    body = {
        "effect_id": effect,
        "video_id": customer.video_id,
        "idempotency_key": uuid.uuid4().hex,
    }
    wire.token = customer.token
    try:
        for _ in range(3):
            try:
                answer = await wire.post("order", "/api/ai-jobs", body)
            except Unreachable:
                continue
            if answer.status not in (200, 201):
                raise RuntimeError(f"An order was refused: {answer.json()}")
            tally.ordered += 1
            return
    finally:
        wires.put_nowait(wire)
