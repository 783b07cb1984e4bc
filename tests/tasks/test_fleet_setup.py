"""What happens around a fleet while its mapping changes."""

import time
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import func, select, text

from models import workers
from models.workers import WorkerWorkflow
from tasks import catalog, fleet_setup
from tasks.backend import Backend
from tests.tasks import gpu

STAGE = "dev"
WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")


def mapped(backend: Backend, *wanted: str) -> None:
    fleet_setup.run_workflows(backend, stage=STAGE, slug="cards", wanted=wanted, actor="tests")


def until_somebody_waits(backend: Backend) -> None:
    deadline = time.monotonic() + 30
    with backend.databases.central(read_only=True) as session:
        while not session.scalar(WAITING):
            assert time.monotonic() < deadline, "Nobody waits for a lock."
            time.sleep(0.01)


def test_a_worker_that_leaves_meanwhile_does_not_stop_a_mapping(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    fleet_setup.create(postgres, stage=STAGE, slug="cards", actor="tests")
    leaves, stays = (gpu.join(postgres, fleet_slug="cards") for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        with postgres.databases.central() as session:
            workers.remove(session, leaves.id)
            session.flush()
            mapping = pool.submit(mapped, postgres, "colour-card")
            until_somebody_waits(postgres)
        mapping.result(timeout=30)
    with postgres.databases.central(read_only=True) as session:
        assert session.scalars(select(WorkerWorkflow.worker_id)).all() == [stays.id]


def test_who_registers_meanwhile_gets_what_the_fleet_runs(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    fleet_setup.create(postgres, stage=STAGE, slug="cards", actor="tests")

    def map_both_ways() -> None:
        for number in range(10):
            mapped(postgres, *["colour-card", "image-blur"][: 1 + number % 2])

    with ThreadPoolExecutor(5) as pool:
        joining = [pool.submit(gpu.join, postgres, fleet_slug="cards") for _ in range(10)]
        pool.submit(map_both_ways).result(timeout=60)
        for joined in joining:
            joined.result(timeout=60)
    with postgres.databases.central(read_only=True) as session:
        rights = select(WorkerWorkflow.worker_id, func.count()).group_by(WorkerWorkflow.worker_id)
        assert [count for _, count in session.execute(rights)] == [2] * 10
