"""ComfyUI dies, or answers and does nothing: the job goes elsewhere, the worker gets well again."""

import pytest
import requests

from tests.end_to_end import jobs
from tests.end_to_end.house import House
from tests.end_to_end.running_part import until

SAVES = {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "stuck"}}
EMPTY = {
    "class_type": "EmptyImage",
    "inputs": {"width": 4, "height": 4, "batch_size": 1, "color": 7},
}


def kill_prompt_thread(house: House, worker: int) -> None:
    """A node without inputs is accepted, and ends the thread that runs prompts."""
    graph = {"1": EMPTY, "2": SAVES, "9": {"class_type": "ImageInvert"}}
    url = f"{house.stack.comfyui_url(worker)}/prompt"
    requests.post(url, json={"prompt": graph, "client_id": "t"}, timeout=10).raise_for_status()


@pytest.mark.slow
def test_killed_in_the_middle_the_job_is_tried_again_when_it_is_back(one_worker: House) -> None:
    house = one_worker
    job_id = jobs.order_slow(house, seconds=3)
    jobs.at_work(house, job_id)
    pid = house.workers[0].pid
    house.comfyuis[0].kill()
    until("the try counts", lambda: jobs.holder(house, job_id) is None)
    house.comfyuis[0].start()

    jobs.require_completed(house, job_id)
    assert jobs.attempts(house, job_id) == 2
    assert "job.retry" in dict(jobs.events(house, job_id))
    jobs.require_completed(house, jobs.order_quick(house, colour=1))
    assert house.workers[0].is_running
    assert house.workers[0].pid == pid


@pytest.mark.slow
def test_killed_for_good_another_worker_does_the_job(two_workers: House) -> None:
    house = two_workers
    job_id = jobs.order_slow(house, seconds=3)
    first = jobs.at_work(house, job_id)
    house.comfyuis[first].kill()

    jobs.require_completed(house, job_id)
    done_by = jobs.events(house, job_id)[-1]
    assert done_by == ("job.complete", house.stack.worker_names[1 - first])
    more = [jobs.order_quick(house, colour=colour) for colour in range(4)]
    jobs.require_completed(house, *more)
    assert all(jobs.attempts(house, one) == 1 for one in more)  # the sick worker took none


@pytest.mark.slow
def test_stuck_it_gets_no_more_jobs_until_it_is_restarted(two_workers: House) -> None:
    house = two_workers
    kill_prompt_thread(house, 0)
    house.workers[1].stop()
    job_id = jobs.order_quick(house, colour=60)
    until("the stuck one has it", lambda: jobs.holder(house, job_id) == 0)
    until("the stall is noticed", lambda: ("job.retry", "local-1") in jobs.events(house, job_id))
    waiting = jobs.order_quick(house, colour=61)
    house.workers[1].start()

    jobs.require_completed(house, job_id, waiting)
    for one in (job_id, waiting):
        assert jobs.events(house, one)[-1] == ("job.complete", "local-2")
    assert jobs.attempts(house, waiting) == 1

    house.workers[1].stop()
    last = jobs.order_quick(house, colour=62)
    house.comfyuis[0].restart()
    jobs.require_completed(house, last)
    assert jobs.events(house, last)[-1] == ("job.complete", "local-1")
    assert jobs.attempts(house, last) == 1
