"""The same key is the same job, however often and however late it is sent."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from models import effects
from models.jobs import Job, JobStatus
from tests.webapp.calls import (
    Caller,
    MakeCaller,
    answered,
    completed,
    has_video,
    new_effect,
    nothing_written,
    order,
    ordered,
    refused,
)


def by_header(caller: Caller, key: str, effect: str = "colour-card", **body: Any) -> Any:
    new = {"effect_id": effect} | body
    return caller.post("/api/ai-jobs", json=new, headers={"Idempotency-Key": key})


def test_the_same_order_again_is_the_same_job(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    job = ordered(ada, idempotency_key="once")
    with nothing_written(ada.backend):
        again = answered(order(ada, idempotency_key="once"), 200)
    unplaced = {"queue_position": None, "eta_seconds": None}
    assert again | unplaced == job | unplaced
    assert ada.wallet() == {"balance": 99, "reserved": 1}


def test_a_key_is_good_for_one_order_only(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    ordered(ada, idempotency_key="once", inputs={"width": 7})
    with nothing_written(ada.backend):
        for effect, inputs in [
            ("colour-card", {"width": 8}),
            ("colour-card", {}),
            ("always-fails", {"width": 7}),
            ("no-such-effect", {}),
            ("colour-card", {"width": "wide"}),
        ]:
            answer = order(ada, effect, idempotency_key="once", inputs=inputs)
            refused(answer, 422, "idempotency_key_reused", "idempotency_key")


@pytest.mark.parametrize("written", ["once", '"once"', ' "once" '])
def test_the_key_may_stand_in_the_header(caller: MakeCaller, written: str) -> None:
    ada = caller(tokens=100)
    job = ordered(ada, idempotency_key="once")
    assert answered(by_header(ada, written), 200)["id"] == job["id"]


def test_header_and_body_may_agree(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    answered(by_header(ada, '"once"', idempotency_key="once"), 201)


def test_header_and_body_may_not_disagree(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    with nothing_written(ada.backend):
        answer = by_header(ada, "one", idempotency_key="two")
        refused(answer, 422, "invalid_input", "idempotency_key")


@pytest.mark.parametrize("key", [None, "", "x" * 201, 7, "a\x00b"])
def test_a_key_that_is_none_is_refused(caller: MakeCaller, key: Any) -> None:
    ada = caller(tokens=100)
    with nothing_written(ada.backend):
        answer = order(ada, idempotency_key=key)
        refused(answer, 422, "invalid_input", "idempotency_key")


@pytest.mark.parametrize("key", ["", '""', "x" * 201, "a\x00b"])
def test_a_header_that_is_no_key_is_refused(caller: MakeCaller, key: str) -> None:
    ada = caller(tokens=100)
    with nothing_written(ada.backend):
        refused(by_header(ada, key), 422, "invalid_input", "idempotency_key")


def test_keys_of_different_people_do_not_meet(caller: MakeCaller) -> None:
    jobs = [ordered(caller(tokens=9), idempotency_key="once") for _ in range(2)]
    assert jobs[0]["id"] != jobs[1]["id"]


def test_a_repeat_finds_its_job_when_the_effect_is_gone(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    slug = new_effect(ada.backend)
    job = ordered(ada, slug, idempotency_key="once")
    with ada.backend.databases.central() as session:
        effects.get(session, slug).is_active = False
    assert answered(order(ada, slug, idempotency_key="once"), 200)["id"] == job["id"]
    refused(order(ada, slug, idempotency_key="new"), 422, "effect_unavailable")


def test_a_repeat_finds_its_job_when_it_has_ended_and_its_video_is_gone(
    caller: MakeCaller,
) -> None:
    ada = caller(tokens=100)
    given = {"video_id": str(has_video(ada)), "idempotency_key": "once"}
    job = ordered(ada, "image-invert", **given)
    completed(ada, job["id"])
    ada.delete(f"/api/videos/{given['video_id']}")
    again = answered(order(ada, "image-invert", **given), 200)
    assert (again["id"], again["status"]) == (job["id"], "completed")


def test_a_repeat_is_answered_though_five_jobs_are_active_and_the_wallet_is_empty(
    caller: MakeCaller,
) -> None:
    ada = caller(tokens=5)
    first = ordered(ada, idempotency_key="once")
    for _ in range(4):
        ordered(ada)
    assert answered(order(ada, idempotency_key="once"), 200)["id"] == first["id"]


def test_a_repeat_carries_on_where_the_first_request_was_cut_off(caller: MakeCaller) -> None:
    """As after a crash between the two databases: paid for, and nobody knows of it."""
    ada = caller(tokens=100)
    job = ordered(ada, idempotency_key="once")
    with ada.backend.databases.tenant(ada.person.tenant_id) as session:
        session.query(Job).one().status = JobStatus.SUBMITTING
    again = answered(order(ada, idempotency_key="once"), 200)
    assert (again["id"], again["status"]) == (job["id"], "queued")


def test_the_same_order_eight_times_at_once_is_one_job(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: order(ada, idempotency_key="once"), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.get_json()["id"] for answer in answers}) == 1
    assert ada.wallet() == {"balance": 99, "reserved": 1}
