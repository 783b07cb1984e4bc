"""Redis emptied, restarted and stalled, while jobs wait and run: every job ends, paid for once."""

import shutil
import time
from collections.abc import Callable

import pytest

from tests.end_to_end import jobs
from tests.end_to_end.house import House
from tests.end_to_end.running_part import until

STALL_SECONDS = 30.0


def empty(house: House) -> None:
    with house.redis_client() as redis:
        redis.flushall()


def restart(house: House) -> None:
    house.redis.kill()
    house.redis.start()


def restart_empty(house: House) -> None:
    house.redis.kill()
    shutil.rmtree(house.stack.state.folder("redis"))
    house.redis.start()


@pytest.mark.slow
@pytest.mark.parametrize("hurt", [empty, restart, restart_empty])
def test_jobs_that_wait_and_run_outlive_it(
    one_worker: House, hurt: Callable[[House], None]
) -> None:
    running = jobs.order_slow(one_worker, seconds=4)
    jobs.at_work(one_worker, running)
    waiting = [jobs.order_quick(one_worker, colour=colour) for colour in range(3)]
    hurt(one_worker)
    after = jobs.order_quick(one_worker, colour=10)

    jobs.require_completed(one_worker, running, *waiting, after)
    for job_id in (running, *waiting, after):
        assert jobs.attempts(one_worker, job_id) == jobs.times_posted(one_worker, job_id) == 1


@pytest.mark.slow
def test_jobs_ordered_while_it_is_gone_are_run_when_it_is_back(one_worker: House) -> None:
    one_worker.redis.kill()
    ordered = [jobs.order_quick(one_worker, colour=colour) for colour in range(20, 23)]
    one_worker.redis.start()

    jobs.require_completed(one_worker, *ordered)


@pytest.mark.slow
def test_stalled_for_long_it_keeps_nobody_from_ordering(one_worker: House) -> None:
    running = jobs.order_slow(one_worker, seconds=4)
    jobs.at_work(one_worker, running)
    waiting = jobs.order_quick(one_worker, colour=30)
    one_worker.redis.pause()
    stalled_at = time.monotonic()
    ordered = [jobs.order_quick(one_worker, colour=colour) for colour in range(31, 34)]
    until(
        "the stall has lasted",
        lambda: time.monotonic() - stalled_at > STALL_SECONDS,
        seconds=2 * STALL_SECONDS,
    )
    one_worker.redis.resume()

    jobs.require_completed(one_worker, running, waiting, *ordered)
    assert jobs.times_posted(one_worker, running) == 1


@pytest.mark.slow
def test_a_worker_that_has_to_go_while_it_is_stalled_is_gone_in_time(two_workers: House) -> None:
    house = two_workers
    job_id = jobs.order_slow(house, seconds=8)
    first = jobs.at_work(house, job_id)
    house.redis.pause()
    house.workers[first].terminate()

    assert house.workers[first].exit_code() == 0
    assert ("job.requeue", house.stack.worker_names[first]) in jobs.events(house, job_id)
    assert jobs.attempts(house, job_id) == 0
    assert jobs.deregistered(house, first)
    house.redis.resume()
    jobs.require_completed(house, job_id)
    assert jobs.attempts(house, job_id) == 1
