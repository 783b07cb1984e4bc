"""What an operator sees of a worker with Celery's tools, and can order it to do."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from tests.gpu_worker.small_stack import (
    FLEET,
    OTHER_FLEET,
    SmallStack,
    WorkerProcess,
    await_status,
    dispatch_of,
    job_of,
    order_card,
    stack_of_its_own,
    until,
)
from tests.webapp.calls import Caller, Json

INSPECT_SECONDS = 5.0


@pytest.fixture(scope="module")
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SmallStack]:
    with stack_of_its_own(request, tmp_path_factory) as stack:
        yield stack


@pytest.fixture(scope="module")
def worker(stack: SmallStack) -> Iterator[WorkerProcess]:
    with stack.worker("w1") as worker:
        yield worker


@pytest.fixture(scope="module")
def celery(stack: SmallStack) -> Iterator[Celery]:
    with stack.celery() as celery:
        yield celery


@pytest.fixture
def ada(stack: SmallStack) -> Caller:
    return stack.customer()


@pytest.fixture
def redis(stack: SmallStack) -> Iterator[Redis]:
    with Redis.from_url(stack.redis_url) as redis:
        yield redis


def asked(celery: Celery, worker: WorkerProcess, question: str) -> Any:
    """What the worker answers to `celery inspect`."""
    inspect = celery.control.inspect([worker.node], timeout=INSPECT_SECONDS, limit=1)
    return inspect._request(question)[worker.node]


@contextmanager
def events(celery: Celery) -> Iterator[list[Json]]:
    """What is told from now on."""
    told: list[Json] = []
    listens, stop = threading.Event(), threading.Event()

    def keep_listening() -> None:
        with celery.connection_for_read() as connection:
            receiver = celery.events.Receiver(connection, handlers={"*": told.append})
            with receiver.consumer_context(wakeup=False) as (own_connection, _, _):
                listens.set()
                while not stop.is_set():
                    try:
                        own_connection.drain_events(timeout=0.1)
                    except TimeoutError:
                        continue

    thread = threading.Thread(target=keep_listening)
    thread.start()
    try:
        assert listens.wait(INSPECT_SECONDS)
        yield told
    finally:
        stop.set()
        thread.join()


# Seeing


def test_a_worker_answers_while_it_works(
    worker: WorkerProcess, celery: Celery, ada: Caller
) -> None:
    job = order_card(ada, seconds=30)
    await_status(ada, job, "processing")
    assert asked(celery, worker, "ping") == {"ok": "pong"}
    [ticket] = asked(celery, worker, "active")
    assert ticket["name"] == "gpu_worker.run"
    assert ticket["args"] == [dispatch_of(ada, job)]
    current = asked(celery, worker, "current_job")
    assert current["job_id"] == job["id"]
    assert current["dispatch_id"] == dispatch_of(ada, job)
    assert current["attempt"] == 1
    stats = asked(celery, worker, "stats")
    assert stats["pid"] == worker.process.pid
    assert stats["pool"]["max-concurrency"] == 1
    ada.post(f"/api/ai-jobs/{job['id']}/cancel")
    until("it is free again", lambda: asked(celery, worker, "active") == [])
    assert asked(celery, worker, "current_job") == {"job_id": None}


def test_its_name_says_its_fleet_and_itself(worker: WorkerProcess, celery: Celery) -> None:
    assert celery.control.ping(timeout=INSPECT_SECONDS, limit=1) == [
        {f"gpu@{FLEET}.w1": {"ok": "pong"}}
    ]


def test_events_tell_dispatches_and_jobs_and_how_they_ended(
    worker: WorkerProcess, celery: Celery, ada: Caller
) -> None:
    with events(celery) as told:
        job = order_card(ada)

        def ended() -> list[Json]:
            return [event for event in told if job["id"] in str(event.get("result"))]

        [succeeded] = until("the end is told", ended)
        dispatch_id = dispatch_of(ada, job)
    assert succeeded["type"] == "task-succeeded"
    assert succeeded["hostname"] == worker.node
    assert succeeded["result"] == repr([f"{job['id']} completed"])
    mine = [event for event in told if event.get("uuid") == succeeded["uuid"]]
    assert [event["type"] for event in mine] == ["task-received", "task-started", "task-succeeded"]
    assert dispatch_id in mine[0]["args"]


def test_its_log_holds_no_warning_about_being_root(worker: WorkerProcess) -> None:
    assert "superuser" not in worker.program.log_text()


# Ordering


def test_it_takes_tickets_of_its_fleet_only(
    worker: WorkerProcess, celery: Celery, ada: Caller, redis: Redis
) -> None:
    assert [queue["name"] for queue in asked(celery, worker, "active_queues")] == [FLEET]
    others = order_card(ada, fleet=OTHER_FLEET)
    until("the ticket is there", lambda: redis.llen(OTHER_FLEET) == 1)
    await_status(ada, order_card(ada), "completed")
    assert redis.llen(OTHER_FLEET) == 1
    assert job_of(ada, others)["status"] == "queued"
    redis.delete(OTHER_FLEET)


def test_it_can_be_told_to_take_no_more_tickets_and_to_go_on(
    worker: WorkerProcess, celery: Celery, ada: Caller, redis: Redis
) -> None:
    control, whom = celery.control, {"destination": [worker.node], "reply": True, "limit": 1}
    assert "ok" in control.cancel_consumer(FLEET, **whom)[0][worker.node]
    until("it no longer listens", lambda: asked(celery, worker, "active_queues") == [])
    job = order_card(ada)
    until("the ticket is there", lambda: redis.llen(FLEET) == 1)
    assert asked(celery, worker, "active") == []
    assert job_of(ada, job)["status"] == "queued"
    assert "ok" in control.add_consumer(FLEET, **whom)[0][worker.node]
    await_status(ada, job, "completed")


# With the programs that people use


def test_the_celery_command_asks_for_the_current_job(
    stack: SmallStack, worker: WorkerProcess, ada: Caller
) -> None:
    job = order_card(ada, seconds=30)
    await_status(ada, job, "processing")
    command = ["celery", "-A", "tasks.app", "inspect", "current_job", "--json", "-d", worker.node]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=stack.control_environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    ada.post(f"/api/ai-jobs/{job['id']}/cancel")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[worker.node]["job_id"] == job["id"]
