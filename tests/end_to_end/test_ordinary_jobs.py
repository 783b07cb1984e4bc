"""Jobs on their ordinary way through all processes: results, failures, cancelling, draining."""

import io

import pytest
import requests
from PIL import Image

from models import enlisted
from tests.end_to_end import jobs
from tests.end_to_end.house import House
from tests.end_to_end.running_part import until


def fetched(output: jobs.Json) -> bytes:
    answer = requests.get(output["url"], timeout=20)
    answer.raise_for_status()
    return answer.content


def test_a_job_makes_its_result(one_worker: House) -> None:
    job = jobs.end_of(one_worker, jobs.order_quick(one_worker, colour=0x00FF00))

    assert job["status"] == "completed"
    [output] = job["outputs"]
    assert Image.open(io.BytesIO(fetched(output))).getpixel((0, 0)) == (0, 255, 0)
    assert one_worker.is_idle(0)


def test_several_outputs_are_kept_with_their_names_and_types(one_worker: House) -> None:
    job = jobs.end_of(one_worker, one_worker.customer.order("three-files")["id"])

    assert job["status"] == "completed"
    types = {output["name"]: output["mime_type"] for output in job["outputs"]}
    assert sorted(types.values()) == ["image/png", "image/webp", "text/plain"]
    contents = {output["mime_type"]: fetched(output) for output in job["outputs"]}
    assert contents["text/plain"] == b"A card with two sides."
    assert Image.open(io.BytesIO(contents["image/webp"])).format == "WEBP"


def test_an_output_of_another_type_than_usual_is_kept_as_what_it_is(one_worker: House) -> None:
    job = jobs.end_of(one_worker, one_worker.customer.order("another-type")["id"])

    assert job["status"] == "completed"
    [output] = job["outputs"]
    assert output["mime_type"] == "audio/mpeg"
    assert fetched(output) == b"A small file of EmitOutputs.\n"


def test_a_job_that_fails_is_refunded_with_a_readable_reason(one_worker: House) -> None:
    before = one_worker.customer.balance()
    job = jobs.end_of(one_worker, one_worker.customer.order("always-fails")["id"])

    assert job["status"] == "failed"
    assert job["error"]["code"] == "execution_failed"
    assert "/" not in job["error"]["message"]
    assert one_worker.customer.balance() == before
    assert jobs.attempts(one_worker, job["id"]) == 1  # another try would end the same way
    jobs.require_completed(one_worker, jobs.order_quick(one_worker, colour=1))


def test_cancelling_a_job_that_waits(one_worker: House) -> None:
    before = one_worker.customer.balance()
    first = jobs.order_slow(one_worker, seconds=3)
    jobs.at_work(one_worker, first)
    second = jobs.order_slow(one_worker, seconds=3)
    one_worker.customer.call("POST", f"/api/ai-jobs/{second}/cancel")

    assert jobs.end_of(one_worker, second)["status"] == "cancelled"
    jobs.require_completed(one_worker, first)
    jobs.require_completed(one_worker, jobs.order_quick(one_worker, colour=2))
    assert jobs.times_posted(one_worker, second) == 0
    assert one_worker.customer.balance() == before - 5 - 1


def test_cancelling_a_job_that_runs_stops_comfyui(one_worker: House) -> None:
    before = one_worker.customer.balance()
    job_id = jobs.order_slow(one_worker, seconds=300)
    jobs.at_work(one_worker, job_id)
    one_worker.customer.call("POST", f"/api/ai-jobs/{job_id}/cancel")

    assert jobs.end_of(one_worker, job_id)["status"] == "cancelled"
    until("ComfyUI is idle", lambda: one_worker.is_idle(0), seconds=30)
    assert one_worker.customer.balance() == before
    jobs.require_completed(one_worker, jobs.order_quick(one_worker, colour=3))


@pytest.mark.slow
def test_a_drained_worker_finishes_its_job_and_takes_no_other(one_worker: House) -> None:
    first = jobs.order_slow(one_worker, seconds=4)
    jobs.at_work(one_worker, first)
    drain(one_worker, draining=True)
    second = jobs.order_quick(one_worker, colour=4)
    jobs.require_completed(one_worker, first)
    # With one reconcile after the other ringing for it, only the drain keeps it waiting.
    third = jobs.order_quick(one_worker, colour=5)
    until("tickets wait", lambda: one_worker.redis_client().llen("gpu-default"))
    assert jobs.attempts(one_worker, second) == jobs.attempts(one_worker, third) == 0

    drain(one_worker, draining=False)
    jobs.require_completed(one_worker, second, third)


def drain(house: House, *, draining: bool) -> None:
    with house.databases.central() as session:
        enlisted.drain(session, house.stack.worker_names[0], draining=draining)
