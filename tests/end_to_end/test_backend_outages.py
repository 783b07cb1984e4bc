"""The webapp is away while a job runs: the job completes all the same, once, paid for once."""

import time

import pytest

from tests.end_to_end import jobs
from tests.end_to_end.house import SHORT, House
from tests.end_to_end.running_part import until

LEASE_SECONDS = int(SHORT["COMFYFLEET_LEASE_SECONDS"])


def away_for(house: House, *, seconds: float) -> None:
    """Nobody is there to take a lease back either: that needs the control worker."""
    begin = time.monotonic()
    until("time passes", lambda: time.monotonic() - begin > seconds, seconds=2 * seconds + 10)


@pytest.mark.slow
def test_not_answering_for_less_than_a_lease(one_worker: House) -> None:
    house = one_worker
    job_id = jobs.order_slow(house, seconds=2)
    jobs.at_work(house, job_id)
    house.web.pause()
    away_for(house, seconds=LEASE_SECONDS / 2)
    house.web.resume()

    jobs.require_completed(house, job_id)
    assert jobs.attempts(house, job_id) == jobs.times_posted(house, job_id) == 1


@pytest.mark.slow
def test_gone_for_longer_than_a_lease_while_nobody_else_takes_the_job(one_worker: House) -> None:
    """The job ends in the middle of the outage, and its worker insists until it is heard."""
    house = one_worker
    job_id = jobs.order_slow(house, seconds=3)
    jobs.at_work(house, job_id)
    house.control.stop()
    house.web.kill()
    away_for(house, seconds=2 * LEASE_SECONDS)
    house.web.start()

    jobs.require_completed(house, job_id)
    assert jobs.attempts(house, job_id) == jobs.times_posted(house, job_id) == 1


@pytest.mark.slow
def test_gone_for_longer_than_a_lease_and_the_job_is_taken_back(two_workers: House) -> None:
    """The lease ran out: whoever comes too late is refused, and there is one result."""
    house = two_workers
    job_id = jobs.order_slow(house, seconds=3)
    jobs.at_work(house, job_id)
    house.web.kill()
    away_for(house, seconds=2 * LEASE_SECONDS)
    house.web.start()

    jobs.require_completed(house, job_id)
    until("both ComfyUIs are idle", lambda: house.is_idle(0) and house.is_idle(1))
    assert [event for event, _ in jobs.events(house, job_id)].count("job.complete") == 1


@pytest.mark.slow
def test_a_worker_that_starts_before_the_webapp_waits_for_it(one_worker: House) -> None:
    house = one_worker
    house.workers[0].stop()
    job_id = jobs.order_quick(house, colour=1)
    house.web.kill()
    house.workers[0].start(wait=False)
    until("it says so", lambda: "Waiting for the webapp" in house.workers[0].log.read_text())
    house.web.start()

    jobs.require_completed(house, job_id)
