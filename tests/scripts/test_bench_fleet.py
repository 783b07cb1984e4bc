"""The bench of a large fleet, in small: it runs, and it sees when something was lost."""

import os

import pytest

from gpu_worker import app, lease_keeper
from gpu_worker import backend as backend_module
from models import dispatches
from models.jobs import Job
from scripts import bench_fleet
from scripts.bench_fleet_audit import findings
from scripts.bench_processes import used_by
from scripts.worker_stand_in import wire
from scripts.worker_stand_in import worker as stand_in
from tasks import catalog, outcomes, reports
from tasks.backend import Backend
from tests.fixtures import make_person
from tests.tasks import gpu, orders


def ordered_and_completed(backend: Backend) -> Job:
    catalog.seed_demo(backend)
    job = orders.order(backend, make_person(backend, tokens=100))
    worker = gpu.join(backend)
    reports.complete(backend, worker, gpu.take(backend, worker), outputs=[gpu.IMAGE])
    return job


def test_a_fleet_that_lost_nothing_has_no_findings(backend: Backend) -> None:
    ordered_and_completed(backend)
    assert findings(backend.databases, ordered=1) == []


def test_a_job_that_nobody_knows_of_is_found(backend: Backend) -> None:
    ordered_and_completed(backend)
    assert findings(backend.databases, ordered=2) == [
        "2 jobs were ordered, 1 completed",
        "2 jobs were ordered, the audit log knows 1",
    ]


def test_a_job_without_a_result_is_found(backend: Backend) -> None:
    catalog.seed_demo(backend)
    job = orders.order(backend, make_person(backend, tokens=100))
    outcomes.cancel(backend, job.tenant_id, job.id)
    found = findings(backend.databases, ordered=1)
    assert "1 jobs are cancelled" in found
    assert "1 dispatches have not completed" in found


def test_a_second_lease_is_found_although_the_job_completed(backend: Backend) -> None:
    catalog.seed_demo(backend)
    orders.order(backend, make_person(backend, tokens=100))
    worker = gpu.join(backend)
    lease = gpu.take(backend, worker)
    with backend.databases.central() as session:
        dispatches.requeue(session, lease, reason="test")
    reports.complete(backend, worker, gpu.take(backend, worker), outputs=[gpu.IMAGE])
    found = findings(backend.databases, ordered=1)
    assert "1 dispatches needed more than one lease" in found
    assert "1 jobs were not leased once and completed once" in found


def test_what_a_process_uses_is_seen() -> None:
    before = used_by(os.getpid())
    sum(number * number for number in range(3_000_000))
    after = used_by(os.getpid())
    assert after.cpu_seconds > before.cpu_seconds
    assert after.memory_mb > 10
    assert after.processes >= 1


def test_the_stand_in_keeps_the_times_of_a_real_worker() -> None:
    for name in ("JOBS_PER_TICKET", "FIRST_SECONDS", "AGAIN_SECONDS"):
        real = getattr(app, name, None) or getattr(lease_keeper, name)
        assert getattr(stand_in, name) == real, name
    assert (wire.CONNECT_SECONDS, wire.READ_SECONDS) == (
        backend_module._CONNECT_SECONDS,
        backend_module._READ_SECONDS,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_fleet_is_held() -> None:
    result = bench_fleet.run(sizes=[10], pace=5.0, job_seconds=10.0)
    assert result.samples["10"]["wrong"] == []
    figures = result.figures
    assert figures["fleet_workers_held"] == 10
    assert figures["fleet_api_p99_ms"] > figures["fleet_api_p50_ms"] > 0
    assert 0 < figures["fleet_cpu_share"] < 1
    assert figures["fleet_heartbeats_per_job"] > 0 < figures["fleet_polls_per_job"]
    assert 0 < figures["fleet_longest_silence_of_lease"] < 1
    assert figures["redis_connections"] > 10 * 6
    assert figures["others_cpu_share"] >= 0
    for part in bench_fleet.PARTS:
        assert figures[f"{part}_memory_mb"] > 0
