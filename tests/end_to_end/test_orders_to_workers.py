"""An administrator orders real workers about, over the API: they hear it, and nothing is lost."""

from pathlib import Path
from typing import Any

import pytest
import requests

from tests.end_to_end import jobs
from tests.end_to_end.house import CALL_SECONDS, House
from tests.end_to_end.running_part import until


def call(house: House, method: str, path: str) -> Any:
    answer = requests.request(
        method,
        f"{house.stack.api_url}/api/admin/workers{path}",
        headers={"Authorization": f"Bearer {house.stack.secrets['admin_token']}"},
        timeout=CALL_SECONDS,
    )
    answer.raise_for_status()
    return answer.json()


def command(house: House, worker: int, order: str) -> Any:
    return call(house, "POST", f"/{house.stack.worker_names[worker]}/{order}")


def seen(house: House, worker: int) -> Any:
    name = house.stack.worker_names[worker]
    [found] = [one for one in call(house, "GET", "")["items"] if one["worker_id"] == name]
    return found


@pytest.mark.slow
def test_locked_out_a_worker_stops_and_another_finishes_its_job(two_workers: House) -> None:
    house = two_workers
    job_id = jobs.order_slow(house, seconds=6)
    first = jobs.at_work(house, job_id)
    [held] = seen(house, first)["holds"]
    assert held["job_id"] == job_id

    assert command(house, first, "revoke")["is_approved"] is False
    until("its ComfyUI was interrupted", lambda: house.is_idle(first), seconds=20)
    jobs.require_completed(house, job_id)
    assert jobs.attempts(house, job_id) == 2
    assert jobs.events(house, job_id)[-1] == ("job.complete", house.stack.worker_names[1 - first])

    # It takes no tickets either: they would be lost to those who may work.
    quick = [jobs.order_quick(house, colour=100 + number) for number in range(5)]
    jobs.require_completed(house, *quick)
    assert {jobs.events(house, one)[-1][1] for one in quick} == {
        house.stack.worker_names[1 - first]
    }

    command(house, first, "approve")
    command(house, 1 - first, "drain")
    jobs.require_completed(house, jobs.order_quick(house, colour=200))
    command(house, 1 - first, "undrain")


@pytest.mark.slow
def test_locked_out_a_worker_that_starts_anew_stays_out(one_worker: House) -> None:
    house = one_worker
    command(house, 0, "revoke")
    house.workers[0].kill()
    house.workers[0].start(wait=False)
    assert house.workers[0].exit_code(seconds=30) == 2
    assert "locked out" in house.workers[0].tail()

    command(house, 0, "approve")
    house.workers[0].start()
    jobs.require_completed(house, jobs.order_quick(house, colour=210))


@pytest.mark.slow
def test_with_a_new_token_in_its_folder_a_worker_goes_on_with_its_job(one_worker: House) -> None:
    house = one_worker
    job_id = jobs.order_slow(house, seconds=3)
    jobs.at_work(house, job_id)
    token = command(house, 0, "rotate-token")["token"]
    token_file(house).write_text(token)

    jobs.require_completed(house, job_id)
    assert jobs.attempts(house, job_id) == 1
    assert seen(house, 0)["status"] == "present"


def token_file(house: House) -> Path:
    [found] = house.stack.state.path.glob(f"gpu-1/{house.stack.worker_names[0]}/token")
    return found


def test_a_drained_worker_is_seen_to_finish_its_job_and_to_take_no_other(
    one_worker: House,
) -> None:
    house = one_worker
    first = jobs.order_slow(house, seconds=3)
    jobs.at_work(house, first)
    assert command(house, 0, "drain")["is_draining"] is True
    second = jobs.order_quick(house, colour=220)
    jobs.require_completed(house, first)
    until("it holds nothing", lambda: seen(house, 0)["holds"] == [])
    assert jobs.attempts(house, second) == 0

    assert command(house, 0, "undrain")["is_draining"] is False
    jobs.require_completed(house, second)
