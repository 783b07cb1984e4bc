"""What a lease costs with 100, 10 000 and 1 000 000 jobs waiting, beside 5 000 000 finished.

The time is that of the whole lease, as the web process sees it, commit included; between two
leases the job is completed and another one queued, so the queue keeps its length. Beside it:
what it costs to say where those who wait stand.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, text

from models import dispatches, fleets, hot_worker, lane_places, lanes, tenants, workflows
from models.base import row_id
from models.dispatches import Dispatch
from models.session import Databases, make_engine
from models.settings import Settings
from models.workflows import Recipe
from scripts.bench_bed import Bed, bed
from scripts.bench_result import Result, progress

FINISHED = 5_000_000
WAITING = (100, 10_000, 1_000_000)
USERS = 10_000
ROUNDS = 60
WARM_UP_ROUNDS = 10
LEASES = 20
WORKERS = 8
SECONDS = 8.0

FILL = """
INSERT INTO ai_job_dispatches (id, seq, tenant_id, tenant_job_id, user_id, workflow_id, fleet_id,
    provider, status, priority, turn, attempts, max_attempts, progress, created_at, updated_at)
SELECT uuidv7(), nextval('ai_job_dispatches_seq'), :tenant, uuidv7(),
    md5((n % :users)::text)::uuid, :workflow, :fleet, 'self_hosted', :status, 0, n / :users,
    0, 3, 0, now(), now()
FROM generate_series(1, :count) n
"""
# Constraints are checked when they come back, in one go, instead of row by row.
CONSTRAINTS = ("pk_ai_job_dispatches", "uq_ai_job_dispatches_seq",
               "uq_ai_job_dispatches_tenant_id_tenant_job_id")  # fmt: skip


class Lane:
    """A fleet with jobs waiting for it. All lanes share the table."""

    def __init__(self, made: Bed, slug: str) -> None:
        self.databases = made.backend.databases
        with self.databases.central() as session:
            tenant = tenants.create(session, name="bench", pool="main")
            fleet = fleets.put(session, stage="dev", slug=slug, name="Bench")
            recipe = Recipe(graph={}, output_node_id=None, properties=[])
            workflow = workflows.put(session, slug=slug, name="W", kind="image", recipe=recipe)
            self.tenant, self.fleet, self.workflow = tenant.id, fleet.id, workflow.id
        self.owner = make_engine(made.settings.central_url, as_owner=True)

    def fill(self, status: str, count: int) -> None:
        values = {"tenant": self.tenant, "workflow": self.workflow, "fleet": self.fleet}
        with self.owner.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            _give_uuidv7(connection)
            connection.execute(
                text(FILL), values | {"users": USERS, "status": status, "count": count}
            )

    def fill_finished(self, count: int) -> None:
        self._execute(
            *(
                f"ALTER TABLE ai_job_dispatches DROP CONSTRAINT {name} CASCADE"
                for name in CONSTRAINTS
            )
        )
        self.fill("completed", count)
        self._execute(
            "ALTER TABLE ai_job_dispatches ADD CONSTRAINT pk_ai_job_dispatches PRIMARY KEY (id)",
            "ALTER TABLE ai_job_dispatches ADD CONSTRAINT uq_ai_job_dispatches_seq UNIQUE (seq)",
            "ALTER TABLE ai_job_dispatches ADD CONSTRAINT"
            " uq_ai_job_dispatches_tenant_id_tenant_job_id UNIQUE (tenant_id, tenant_job_id)",
        )

    def settle(self) -> None:
        with self.owner.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE ai_job_dispatches"))
            connection.execute(text("CHECKPOINT"))

    def _execute(self, *statements: str) -> None:
        with self.owner.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def lease(self) -> Dispatch:
        leased = hot_worker.lease(self.databases, **self.worker)
        if leased is None:
            raise RuntimeError("Nothing was left to lease.")
        return leased

    @property
    def worker(self) -> dict[str, Any]:
        return {
            "fleet_id": self.fleet,
            "providers": ["self_hosted"],
            "workflow_ids": [self.workflow],
            "worker_id": "bench",
            "lease_seconds": 180,
        }

    def place_ms(self) -> float:
        """Of the one read that answers all who ask within a second where they stand."""
        return self._median_ms(lane_places.head, 50)

    def ladder_ms(self) -> float:
        """Of the one that answers for a minute, and nobody waits for."""
        return self._median_ms(lane_places.ladder, 3)

    def _median_ms(self, read: Callable[..., object], times: int) -> float:
        taken = []
        for _ in range(times):
            begin = time.perf_counter()
            with self.databases.central(read_only=True) as session:
                read(session, fleet_id=self.fleet, provider="self_hosted")
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken) * 1000

    def replace(self, leased: Dispatch) -> None:
        with self.databases.central() as session:
            dispatches.complete(session, leased.id)
            lanes.join(
                session,
                tenant_id=self.tenant,
                tenant_job_id=row_id(),
                user_id=leased.user_id,
                workflow_id=self.workflow,
                fleet_id=self.fleet,
                provider="self_hosted",
            )


def _give_uuidv7(connection: Connection) -> None:
    """PostgreSQL has ids like ours since version 18; before, these are near enough."""
    if not connection.scalar(text("SELECT 1 FROM pg_proc WHERE proname = 'uuidv7'")):
        connection.execute(
            text(
                "CREATE FUNCTION uuidv7() RETURNS uuid LANGUAGE sql AS $$ SELECT (lpad(to_hex("
                "(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'"
                " || substr(md5(random()::text), 1, 19))::uuid $$"
            )
        )


def run() -> Result:
    with bed() as made:
        lanes_by_size = {size: Lane(made, f"waiting-{size}") for size in WAITING}
        progress(f"{FINISHED:,} finished jobs")
        lanes_by_size[WAITING[0]].fill_finished(FINISHED)
        for size, lane in lanes_by_size.items():
            progress(f"{size:,} waiting jobs")
            lane.fill("queued", size)
        lane.settle()
        times = _in_turns(lanes_by_size)
        progress("places in the queue")
        places = {size: lane.place_ms() for size, lane in lanes_by_size.items()}
        ladder_ms = lane.ladder_ms()
        progress(f"{WORKERS} workers at once on {WAITING[-1]:,} waiting jobs")
        rate = _many_workers(made.settings, lane)
    low, middle, high = (statistics.median(times[size]) * 1000 for size in WAITING)
    figures = {
        "lease_ratio_10k": middle / low,
        "lease_ratio_1m": high / low,
        "leases_per_second_8_workers": rate,
        "lease_ms_100": low,
        "lease_ms_10k": middle,
        "lease_ms_1m": high,
        "place_ratio_1m": places[WAITING[-1]] / places[WAITING[1]],
        "place_ms_10k": places[WAITING[1]],
        "place_ms_1m": places[WAITING[-1]],
        "ladder_ms_1m": ladder_ms,
    }
    return Result("lease", figures, {"lease_seconds": {str(s): t for s, t in times.items()}})


def _in_turns(lanes_by_size: dict[int, Lane]) -> dict[int, list[float]]:
    """A few leases on each lane, round after round: all see the same moods of the machine."""
    times: dict[int, list[float]] = {size: [] for size in lanes_by_size}
    for number in range(ROUNDS):
        if number % 10 == 0:
            progress(f"round {number} of {ROUNDS}")
        for size, lane in lanes_by_size.items():
            for _ in range(LEASES):
                begin = time.perf_counter()
                leased = lane.lease()
                times[size].append(time.perf_counter() - begin)
                lane.replace(leased)
    warm_up = WARM_UP_ROUNDS * LEASES
    return {size: measured[warm_up:] for size, measured in times.items()}


def _many_workers(settings: Settings, lane: Lane) -> float:
    """Leases a second of several processes together, nothing else between them."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS) as pool:
        rates = pool.starmap(_lease_for_a_while, [(settings, lane.worker)] * WORKERS)
    return sum(rates)


def _lease_for_a_while(settings: Settings, worker: dict[str, Any]) -> float:
    databases, count = Databases(settings), 0
    hot_worker.lease(databases, **worker)  # connects and prepares
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + SECONDS:
        hot_worker.lease(databases, **worker)
        count += 1
    databases.close()
    return count / (now - begin)
