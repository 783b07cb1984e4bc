"""However a worker ends in the middle of a job, the job is finished once and paid for once."""

from typing import Any

import pytest
from celery import Celery

from tests.end_to_end import jobs
from tests.end_to_end.house import House
from tests.end_to_end.running_part import until

LONG_SECONDS = 300.0  # would outlast any test: it has to be interrupted


def other(worker: int) -> int:
    return 1 - worker


def require_handed_back(house: House, job_id: str, worker: int, *, reason: str) -> None:
    """The worker left as it should: nothing of its job is left with it, nothing was counted."""
    assert house.workers[worker].exit_code() == 0
    assert house.is_idle(worker)
    assert jobs.deregistered(house, worker)
    [requeued] = [row for row in jobs.audited(house, job_id) if row.event == "job.requeue"]
    assert requeued.worker_id == house.stack.worker_names[worker]
    assert requeued.details["attempt"] == 0
    assert reason in requeued.details["reason"]


def require_finished_by(house: House, job_id: str, worker: int, *, attempts: int) -> None:
    jobs.require_completed(house, job_id)
    assert jobs.attempts(house, job_id) == attempts
    assert jobs.events(house, job_id)[-1] == ("job.complete", house.stack.worker_names[worker])


@pytest.mark.slow
def test_killed_the_job_is_finished_by_another_worker(two_workers: House) -> None:
    house = two_workers
    job_id = jobs.order_slow(house, seconds=3)
    first = jobs.at_work(house, job_id)
    house.workers[first].kill()

    require_finished_by(house, job_id, other(first), attempts=2)
    assert jobs.times_posted(house, job_id) == 2
    house.workers[first].start()  # clears what the killed one left


@pytest.mark.slow
def test_killed_and_started_again_it_goes_on_with_its_job(one_worker: House) -> None:
    house = one_worker
    job_id = jobs.order_slow(house, seconds=2)
    jobs.at_work(house, job_id)
    house.workers[0].kill()
    house.workers[0].start()  # under the same name, with the token it kept

    require_finished_by(house, job_id, 0, attempts=2)


@pytest.mark.slow
def test_killed_and_started_again_it_ends_what_it_left_at_work(one_worker: House) -> None:
    """Otherwise the next try would wait behind a prompt that nobody wants any more."""
    house = one_worker
    job_id = jobs.order_slow(house, seconds=LONG_SECONDS)
    jobs.at_work(house, job_id)
    house.workers[0].kill()
    house.workers[0].start()

    until("the second try runs", lambda: f"job-{job_id}-2/" in running(house))
    assert f"job-{job_id}-1/" not in running(house)
    house.customer.call("POST", f"/api/ai-jobs/{job_id}/cancel")
    until("ComfyUI is idle", lambda: house.is_idle(0))


def running(house: House) -> str:
    return str(house.ask_comfyui(0, "/queue")["queue_running"])


@pytest.mark.slow
def test_killed_at_every_try_the_job_is_given_up_and_refunded(one_worker: House) -> None:
    house = one_worker
    before = house.customer.balance()
    job_id = jobs.order_slow(house, seconds=LONG_SECONDS)
    for attempt in (1, 2, 3):
        until(f"try {attempt}", lambda: jobs.attempts(house, job_id) == attempt)  # noqa: B023
        jobs.at_work(house, job_id)
        house.workers[0].kill()
        house.workers[0].start()

    job = jobs.end_of(house, job_id)
    assert (job["status"], job["error"]["code"]) == ("failed", "attempts_exhausted")
    assert house.customer.balance() == before


def test_sigterm_hands_the_job_back(two_workers: House) -> None:
    house = two_workers
    job_id = jobs.order_slow(house, seconds=6)
    first = jobs.at_work(house, job_id)
    house.workers[first].terminate()

    require_handed_back(house, job_id, first, reason="shutdown")
    require_finished_by(house, job_id, other(first), attempts=1)


@pytest.mark.parametrize(
    ("notice", "reason"),
    [
        ("spot", "spot interruption: terminate at "),
        ("rebalance", "rebalance recommendation"),
        ("scale-in", "scale-in"),
    ],
)
def test_a_notice_of_the_instance_hands_the_job_back(
    two_workers: House, notice: str, reason: str
) -> None:
    house = two_workers
    job_id = jobs.order_slow(house, seconds=6)
    first = jobs.at_work(house, job_id)
    house.tell_imds(first, notice)

    require_handed_back(house, job_id, first, reason=reason)
    house.forget_notices()
    require_finished_by(house, job_id, other(first), attempts=1)


def tell_over_celery(house: House, worker: int, command: str, **options: Any) -> Any:
    node = f"gpu@gpu-default.{house.stack.worker_names[worker]}"
    with (
        Celery(broker=house.stack.redis_url, set_as_current=False) as celery,
        celery.connection_for_write() as connection,  # kept ones may be older than this Redis
    ):
        return celery.control.broadcast(
            command, destination=[node], connection=connection, **options
        )


def test_shut_down_over_celery_it_hands_the_job_back(two_workers: House) -> None:
    house = two_workers
    job_id = jobs.order_slow(house, seconds=6)
    first = jobs.at_work(house, job_id)
    tell_over_celery(house, first, "shutdown")

    require_handed_back(house, job_id, first, reason="operator")
    require_finished_by(house, job_id, other(first), attempts=1)


def test_celery_shows_which_job_a_worker_runs(one_worker: House) -> None:
    house = one_worker
    job_id = jobs.order_slow(house, seconds=LONG_SECONDS)
    jobs.at_work(house, job_id)
    [answer] = tell_over_celery(house, 0, "current_job", reply=True, limit=1, timeout=30)
    house.customer.call("POST", f"/api/ai-jobs/{job_id}/cancel")

    [told] = answer.values()
    assert told["job_id"] == job_id
    jobs.end_of(house, job_id)
    until("ComfyUI is idle", lambda: house.is_idle(0))


def test_an_idle_worker_leaves_at_once(one_worker: House) -> None:
    worker = one_worker.workers[0]
    worker.terminate()

    assert worker.exit_code() == 0
    assert jobs.deregistered(one_worker, 0)
