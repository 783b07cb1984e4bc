"""How many GPU workers one control plane holds, and what they cost it.

One process plays the workers (scripts/worker_stand_in): each has connections of its own to the
webapp and to Redis, takes real tickets, and says what a real worker says, for jobs of 60 s. All
of it is played PACE times as fast: jobs, heartbeats, polls for tickets and leases shrink
together. So every job costs as many calls as in life, and N workers ask as much as PACE times N
in life.

Orders come for 95 of 100 workers, so that some always wait for a ticket. A size is held if no
lease was lost, no lease ran out, every job ended once and the money adds up. How much of the
work that was planned was done in time is a figure of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from models import files, ledger, users, videos
from scripts.bench_control_plane import (
    FLEET,
    SECRET,
    STAGE,
    ControlPlane,
    allow_open_files,
    control_plane,
)
from scripts.bench_fleet_audit import findings
from scripts.bench_processes import Used, machine_cpu_seconds, used_by
from scripts.bench_result import Result, progress
from scripts.worker_stand_in.__main__ import Scene
from scripts.worker_stand_in.tickets import CONNECTIONS

SIZES = (100, 300, 600, 1000)
PACE = 2.0
JOB_SECONDS = 60.0
BUSY = 0.95
MEASURED_JOBS = 3  # of each worker, one after the other
CUSTOMERS = 200
PARTS = ("web", "control", "postgres", "redis")
EFFECT = "image-invert"
OPEN_FILES = CONNECTIONS + 2  # of a worker: to Redis, and to the webapp


@dataclass(frozen=True)
class Size:
    """What was seen of so many workers."""

    workers: int
    jobs_per_second: float  # as they were to be ordered
    report: dict[str, Any]
    wrong: list[str]
    before: dict[str, Used]
    after: dict[str, Used]
    connections: dict[str, int]

    @property
    def is_held(self) -> bool:
        return not self.wrong

    def cpu_share(self, *parts: str) -> float:
        used = sum(self.after[p].cpu_seconds - self.before[p].cpu_seconds for p in parts)
        return float(used / (self.report["seconds"] * (os.cpu_count() or 1)))


def run(
    *, sizes: Sequence[int] = SIZES, pace: float = PACE, job_seconds: float = JOB_SECONDS
) -> Result:
    allow_open_files(max(sizes) * OPEN_FILES + 1000)
    with control_plane(pace=pace) as plane:
        customers = _customers(plane)
        seen: list[Size] = []
        ordered = 0
        for workers in sizes:
            progress(f"{workers} workers")
            scene = _scene(plane, customers, workers, pace, job_seconds)
            seen.append(_play(plane, scene, ordered))
            ordered += seen[-1].report["ordered"]
            for sentence in seen[-1].wrong:
                progress(f"with {workers} workers: {sentence}")
            if not seen[-1].is_held:
                break
    held = [size for size in seen if size.is_held]
    return Result("fleet", _figures(held[-1] if held else seen[0], held, pace), _samples(seen))


def _customers(plane: ControlPlane) -> list[dict[str, str]]:
    """People with tokens, and a picture that they have uploaded."""
    databases, known = plane.bed.backend.databases, []
    for number in range(CUSTOMERS):
        with databases.central() as session:
            user = users.register(
                session,
                email=f"u{number}@example.com",
                password_hash="none",  # noqa: S106 - nobody signs in with it
                name="",
                pool="main",
            )
            token = users.issue_token(session, user, days=1)
        picture = files.Output(
            name="in.png",
            kind="image",
            mime_type="image/png",
            size_bytes=1,
            object_key=f"tenants/{user.tenant_id}/files/{user.id}.png",
            content_hash="0" * 64,
        )
        with databases.tenant(user.tenant_id) as session:
            ledger.credit(
                session, user_id=user.id, amount=10**9, provider_transaction_id=f"bench-{number}"
            )
            file = files.store_output(session, picture, user_id=user.id)
            session.flush()
            video = videos.create(session, user_id=user.id, file=file, title="In")
        known.append({"token": token, "video_id": str(video.id)})
    return known


def _scene(
    plane: ControlPlane,
    customers: list[dict[str, str]],
    workers: int,
    pace: float,
    job_seconds: float,
) -> Scene:
    return Scene(
        url=plane.url,
        storage_url=plane.storage_url,
        redis_url=plane.bed.settings.redis_url,
        fleet=FLEET,
        secret=SECRET,
        stage=STAGE,
        workers=workers,
        prefix=f"bench-{workers}",
        pace=pace,
        job_seconds=job_seconds,
        effect=EFFECT,
        orders_per_second=BUSY * workers * pace / job_seconds,
        customers=customers,
        warm_up_seconds=1.5 * job_seconds / pace,
        seconds=MEASURED_JOBS * job_seconds / pace,
    )


def _play(plane: ControlPlane, scene: Scene, ordered_before: int) -> Size:
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.worker_stand_in"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said, (before, after), connections = _watch(plane, process, scene)
        except BaseException:
            process.kill()
            raise
    wrong = _wrong(plane, said, ordered_before + said["ordered"])
    return Size(scene.workers, scene.orders_per_second, said, wrong, before, after, connections)


def _watch(
    plane: ControlPlane, process: subprocess.Popen[str], scene: Scene
) -> tuple[dict[str, Any], list[dict[str, Used]], dict[str, int]]:
    """What the workers report, and what the control plane used before and after it."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("There is no pipe to the workers.")
    with process.stdin as stdin:
        json.dump(asdict(scene), stdin)
    used: list[dict[str, Used]] = []
    connections: dict[str, int] = {}
    for at in ("measuring", "measured", "report"):
        line = process.stdout.readline()
        said: dict[str, Any] = json.loads(line) if line else {}
        if said.get("at") != at:
            raise RuntimeError("The workers ended before their time; see above.")
        if at != "report":
            own = {"stand_in": used_by(process.pid), "bench": used_by(os.getpid())}
            used.append(plane.used() | own | {"machine": Used(machine_cpu_seconds(), 0, 0)})
            connections = plane.connections()
    return said, used, connections


def _wrong(plane: ControlPlane, report: dict[str, Any], ordered: int) -> list[str]:
    told = {
        "leases were lost": report["leases_lost"],
        "jobs were cancelled": report["cancelled"],
        "jobs were ordered and not completed": report["ordered"] - report["completed"],
    }
    return [f"{count} {what}" for what, count in told.items() if count] + findings(
        plane.bed.backend.databases, ordered=ordered
    )


def _figures(size: Size, held: list[Size], pace: float) -> dict[str, float]:
    report, parts = size.report, PARTS
    calls = {name: one["count"] for name, one in report["calls"].items()}
    lease_seconds = 180 / pace
    figures: dict[str, float] = {
        "fleet_workers_held": held[-1].workers if held else 0,
        "fleet_api_p99_ms": report["worker_calls"]["p99_ms"],
        "fleet_api_p50_ms": report["worker_calls"]["p50_ms"],
        "fleet_cpu_share": size.cpu_share(*parts),
        "fleet_pace": pace,
        "fleet_calls_per_second": report["worker_calls"]["count"] / report["seconds"],
        "fleet_orders_per_second": calls.get("order", 0) / report["seconds"],
        "fleet_jobs_per_minute": report["jobs"] / report["seconds"] * 60,
        "fleet_jobs_share_of_plan": report["jobs"] / (size.jobs_per_second * report["seconds"]),
        "fleet_heartbeats_per_job": calls.get("heartbeat", 0) / max(report["jobs"], 1),
        "fleet_polls_per_job": calls.get("poll", 0) / max(report["jobs"], 1),
        "fleet_longest_silence_of_lease": report["longest_silence"] / lease_seconds,
        "fleet_failed_calls": sum(report["failures"].values()),
        "fleet_registrations_per_second": report["registered_per_second"],
    }
    for part in parts:
        figures[f"{part}_cpu_share"] = size.cpu_share(part)
        figures[f"{part}_memory_mb"] = size.after[part].memory_mb
    figures |= size.connections
    return figures | {
        "stand_in_cpu_share": size.cpu_share("stand_in"),
        "stand_in_memory_mb": size.after["stand_in"].memory_mb,
        "stand_in_lag_p99_ms": report["lag_p99_ms"],
        "others_cpu_share": max(size.cpu_share("machine") - size.cpu_share("bench"), 0),
    }


def _samples(seen: list[Size]) -> dict[str, Any]:
    return {str(size.workers): size.report | {"wrong": size.wrong} for size in seen}
