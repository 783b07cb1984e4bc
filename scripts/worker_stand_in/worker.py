"""One GPU worker without a GPU: it says what gpu_worker says, when gpu_worker says it.

register → ticket → poll → heartbeats → upload → complete → poll → … → deregister

In the place of ComfyUI it sleeps. Its clock runs `pace` times as fast as ours: everything
that it waits for is shorter by so much, and so it asks `pace` times as often. Assets are taken
to be in its cache.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from scripts.worker_stand_in.tally import Tally
from scripts.worker_stand_in.tickets import EVENT_SECONDS, Tickets
from scripts.worker_stand_in.wire import Answer, Unreachable, Wire

JOBS_PER_TICKET = 20  # these four as in gpu_worker/app.py and lease_keeper.py
FIRST_SECONDS = 1.0
AGAIN_SECONDS = 3.0
NODES = 12  # of a graph, for progress
SPREAD = 0.2  # of a job's length, so that no two workers stay in step

RESULT = bytes(10_000)  # nobody opens it
SHA256 = hashlib.sha256(RESULT).hexdigest()


@dataclass(frozen=True, kw_only=True)
class House:
    """What the workers of a fleet have in common."""

    url: str
    redis_url: str
    fleet: str
    secret: str
    stage: str
    pace: float
    job_seconds: float
    tally: Tally
    storage: "asyncio.Queue[Wire]"  # connections to the storage, which is not under test

    async def sleep(self, seconds: float) -> None:
        """By the workers' clock."""
        await asyncio.sleep(seconds / self.pace)


class Worker:
    def __init__(self, house: House, name: str) -> None:
        self._house, self._name, self._tally = house, name, house.tally
        self._keeper, self._runner = (Wire(house.url, house.tally) for _ in range(2))
        self._tickets = Tickets(house.redis_url, house.fleet, pace=house.pace)
        self._idle_seconds = 0.0
        self._held: dict[str, str] | None = None
        self._share = 0.0
        self._is_reporting = False  # then a heartbeat may come after the end it reports
        self._last_beat = self._last_word = self._due = 0.0
        self._wake = asyncio.Event()

    async def register(self) -> None:
        about = {
            "worker_id": self._name,
            "fleet_slug": self._house.fleet,
            "stage": self._house.stage,
            "max_concurrency": 1,
            "providers": ["self_hosted"],
            "capabilities": {"gpu": "NVIDIA L4", "vram_gb": 24},
        }
        secret = {"X-Fleet-Secret": self._house.secret}
        answer = await self._runner.post("register", "/api/worker/register", about, secret)
        if answer.status != 201:
            raise RuntimeError(f"{self._name} may not register: {answer.json()}")
        registered = answer.json()
        self._keeper.token = self._runner.token = registered["token"]
        self._idle_seconds = registered["heartbeat_seconds"]
        self._last_beat = time.monotonic()
        self._due = self._last_beat + self._idle_seconds / self._house.pace

    async def work(self, leaving: asyncio.Event) -> None:
        """Until it is to leave and has nothing more to do."""
        await self._tickets.open()
        beside = [asyncio.create_task(step()) for step in (self._keep, self._pulse)]
        try:
            while not leaving.is_set():
                if tag := await self._tickets.take():
                    await self._take_jobs()
                    await self._tickets.acknowledge(tag)
        finally:
            for task in beside:
                task.cancel()
            self._tickets.close()

    async def leave(self) -> None:
        await self._runner.post("deregister", "/api/worker/deregister", {})
        self._keeper.close()
        self._runner.close()

    async def _pulse(self) -> None:
        while True:
            self._tickets.beat()
            await self._house.sleep(EVENT_SECONDS)

    async def _take_jobs(self) -> None:
        asked = {
            "providers": ["self_hosted"],
            "current_load": 0,
            "max_concurrency": 1,
            "holds_nothing": True,
        }
        for _ in range(JOBS_PER_TICKET):
            answer = await self._insist("poll", asked)
            if answer.status != 200:
                return
            await self._run(answer.json())

    async def _run(self, lease: dict[str, Any]) -> None:
        proof = {name: lease[name] for name in ("dispatch_id", "lease_token")}
        self._last_word = time.monotonic()
        self._hold(proof, min(FIRST_SECONDS, self._idle_seconds_left()))
        length = self._house.job_seconds * random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311
        for node in range(NODES):
            self._share = node / NODES
            await self._house.sleep(length / NODES)
        await self._upload(lease)
        output = {
            "name": "out_00001_.png",
            "mime_type": "image/png",
            "size_bytes": len(RESULT),
            "sha256": SHA256,
        }
        self._is_reporting = True
        timings = {"assets_seconds": 0.0, "run_seconds": length, "upload_seconds": 0.1}
        answer = await self._insist("complete", proof | {"outputs": [output], "timings": timings})
        self._heard(answer)
        self._is_reporting = False
        self._tally.completed += answer.status == 200
        self._hold(None, self._idle_seconds_left())

    async def _upload(self, lease: Mapping[str, Any]) -> None:
        storage = await self._house.storage.get()
        try:
            parts = urlsplit(lease["output_url"])
            path = f"{parts.path}?{parts.query}"
            answer = await storage.send("upload", "PUT", path, lease["output_headers"], RESULT)
        finally:
            self._house.storage.put_nowait(storage)
        if answer.status // 100 != 2:
            raise RuntimeError(f"The storage refused a result: {answer.status}")

    async def _insist(self, call: str, body: Mapping[str, Any]) -> Answer:
        while True:
            try:
                return await self._runner.post(call, f"/api/worker/{call}", body)
            except Unreachable:
                await self._house.sleep(AGAIN_SECONDS)

    def _idle_seconds_left(self) -> float:
        waited = (time.monotonic() - self._last_beat) * self._house.pace
        return self._idle_seconds - waited

    def _hold(self, proof: dict[str, str] | None, seconds: float) -> None:
        self._held, self._share = proof, 0.0
        self._plan(seconds)
        self._wake.set()

    def _plan(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds / self._house.pace

    async def _keep(self) -> None:
        """The heartbeats, with a lease or without."""
        while True:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), max(self._due - time.monotonic(), 0.01))
            except TimeoutError:
                held = self._held
                seconds = await self._beat(held)
                if self._held is held:  # otherwise another job began, which has a plan of its own
                    self._plan(seconds)

    async def _beat(self, held: dict[str, str] | None) -> float:
        told: dict[str, Any] = {}
        if held is not None:
            told = held | {"progress": self._share, "current_node": "KSampler"}
        try:
            answer = await self._keeper.post("heartbeat", "/api/worker/heartbeat", told)
        except Unreachable:
            return AGAIN_SECONDS
        self._last_beat = time.monotonic()
        if held is not None and self._held is held and not self._is_reporting:
            self._heard(answer)
        if answer.status != 200:
            return self._idle_seconds
        body = answer.json()
        if held is not None and self._held is held:
            self._tally.cancelled += body["cancel_requested"]
        return float(body["next_heartbeat_seconds"])

    def _heard(self, answer: Answer) -> None:
        """The webapp has answered about the job at work."""
        now = time.monotonic()
        self._tally.silent(now - self._last_word)
        self._last_word = now
        self._tally.leases_lost += answer.status == 409
