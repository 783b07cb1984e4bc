"""What administrators see of the queue, and what they change about it."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select

from models.dispatches import Dispatch
from models.users import Role
from tasks.backend import Backend
from tests.webapp.calls import (
    Caller,
    Json,
    MakeCaller,
    answered,
    is_utc,
    nothing_written,
    ordered,
    refused,
)
from tests.webapp.gpus import Gpu, held, job_of, lease_of, output

LIST = "/api/admin/dispatches"


@pytest.fixture
def admin(caller: MakeCaller) -> Caller:
    return caller(role=Role.ADMIN)


def listed(admin: Caller, effect: str, query: str = "") -> list[Json]:
    items: list[Json] = answered(admin.get(f"{LIST}?fleet={effect}{query}"))["items"]
    return items


def one(admin: Caller, any_id: str) -> Json:
    return answered(admin.get(f"{LIST}/{any_id}"))


def give_back(gpu: Gpu, error: str = "ComfyUI went away") -> None:
    report = {"error": error, "retryable": True}
    answered(gpu.call("fail", lease_of(held(gpu)) | report))


def test_a_waiting_job_is_shown_with_what_it_belongs_to(
    admin: Caller, ada: Caller, effect: str
) -> None:
    job = ordered(ada, effect)
    [shown] = listed(admin, effect)
    assert (shown["job_id"], shown["status"]) == (job["id"], "queued")
    assert (shown["workflow"], shown["fleet"], shown["stage"]) == (effect, effect, "dev")
    assert (shown["tenant_id"], shown["user_id"]) == (
        str(ada.person.tenant_id),
        str(ada.person.user_id),
    )
    assert (shown["priority"], shown["attempts"], shown["max_attempts"]) == (0, 0, 3)
    assert is_utc(shown["created_at"])
    assert (shown["dead_letter_id"], shown["redriven_job_id"]) == (None, None)


def test_the_list_is_filtered_and_paged(
    admin: Caller, ada: Caller, caller: MakeCaller, effect: str, gpu: Gpu
) -> None:
    bob = caller(tokens=100)
    jobs = [ordered(who, effect)["id"] for who in (ada, bob, ada)]
    leased = held(gpu)["job_id"]
    assert [item["job_id"] for item in listed(admin, effect)] == jobs[::-1]
    assert [item["job_id"] for item in listed(admin, effect, "&status=leased")] == [leased]
    assert len(listed(admin, effect, "&status=queued")) == 2
    assert listed(admin, effect, "&status=completed") == []
    mine = listed(admin, effect, f"&tenant={bob.person.tenant_id}")
    assert [item["job_id"] for item in mine] == [jobs[1]]
    assert listed(admin, "no-such-fleet") == []
    first = answered(admin.get(f"{LIST}?fleet={effect}&limit=2"))
    rest = answered(admin.get(f"{LIST}?fleet={effect}&cursor={first['next_cursor']}"))
    found = [item["job_id"] for item in first["items"] + rest["items"]]
    assert found == jobs[::-1]
    other = admin.get(f"{LIST}?fleet={effect}&status=queued&cursor={first['next_cursor']}")
    refused(other, 422, "invalid_cursor")


@pytest.mark.parametrize("query", ["status=lost", "tenant=nobody", "limit=0"])
def test_a_filter_that_makes_no_sense_is_refused(admin: Caller, query: str) -> None:
    refused(admin.get(f"{LIST}?{query}"), 422, "invalid_input", query.partition("=")[0])


def test_one_is_found_by_its_own_id_and_by_that_of_its_job(
    admin: Caller, ada: Caller, effect: str
) -> None:
    job = ordered(ada, effect)
    by_job = one(admin, job["id"])
    assert by_job == one(admin, by_job["id"])
    assert by_job["job"] == job_of(ada, job)
    refused(admin.get(f"{LIST}/{uuid4()}"), 404, "not_found")


def test_its_story_is_told_from_the_beginning(
    admin: Caller, ada: Caller, effect: str, gpu: Gpu
) -> None:
    job = ordered(ada, effect)
    give_back(gpu, "x" * 1000)
    answered(gpu.call("fail", lease_of(held(gpu)) | {"error": "y" * 1000}))
    shown = one(admin, job["id"])
    told = [(row["event"], row["worker_id"]) for row in shown["timeline"]]
    assert told == [
        ("job.lease", gpu.worker_id),
        ("job.retry", gpu.worker_id),
        ("job.lease", gpu.worker_id),
        ("job.fail", gpu.worker_id),
    ]
    assert shown["timeline"][1]["details"]["error"] == "x" * 1000
    assert (shown["status"], shown["attempts"]) == ("failed", 2)
    assert shown["last_error"] == "y" * 1000
    [brief] = listed(admin, effect)
    assert brief["last_error"] == "y" * 299 + "…"
    assert "timeline" not in brief


def test_to_the_front_and_any_priority(admin: Caller, ada: Caller, effect: str, gpu: Gpu) -> None:
    first, second, third = (ordered(ada, effect)["id"] for _ in range(3))
    assert answered(admin.post(f"{LIST}/{third}/front"))["priority"] == 1
    assert answered(admin.call("PATCH", f"{LIST}/{first}", json={"priority": -7}))["priority"] == -7
    assert [held(gpu)["job_id"] for _ in range(3)] == [third, second, first]
    event = one(admin, third)["timeline"][0]
    assert (event["event"], event["actor"]) == (
        "dispatch.front",
        f"user:{admin.person.user_id}",
    )


@pytest.mark.parametrize("value", [None, "5", 1.5, True, 1_000_001, -1_000_001])
def test_a_priority_that_is_none_is_refused(
    admin: Caller, ada: Caller, effect: str, value: Any
) -> None:
    job = ordered(ada, effect)
    with nothing_written(admin.backend):
        given = {"priority": value}
        answer = admin.call("PATCH", f"{LIST}/{job['id']}", json=given)
        refused(answer, 422, "invalid_input", "priority")


def test_a_held_job_is_cancelled_and_neither_moved_nor_retried(
    admin: Caller, ada: Caller, effect: str, gpu: Gpu
) -> None:
    job = ordered(ada, effect)
    lease = lease_of(held(gpu))
    for step in ("front", "retry"):
        refused(admin.post(f"{LIST}/{job['id']}/{step}"), 409, "not_possible_now")
    moved = admin.call("PATCH", f"{LIST}/{job['id']}", json={"priority": 1})
    refused(moved, 409, "not_possible_now")
    for _ in range(2):
        assert answered(admin.post(f"{LIST}/{job['id']}/cancel"))["status"] == "cancelled"
    assert answered(gpu.call("heartbeat", lease))["cancel_requested"] is True
    assert ada.wallet() == {"balance": 100, "reserved": 0}
    assert one(admin, job["id"])["timeline"][-1]["actor"] == f"user:{admin.person.user_id}"


def test_what_backs_off_is_tried_now(admin: Caller, ada: Caller, effect: str, gpu: Gpu) -> None:
    job = ordered(ada, effect)
    give_back(gpu)
    give_back(gpu)
    assert gpu.poll() is None
    assert is_utc(one(admin, job["id"])["available_at"])
    assert answered(admin.post(f"{LIST}/{job['id']}/retry"))["available_at"] is None
    assert held(gpu)["attempt"] == 3


def test_what_failed_is_ordered_again(admin: Caller, ada: Caller, effect: str, gpu: Gpu) -> None:
    job = ordered(ada, effect)
    answered(gpu.call("fail", lease_of(held(gpu)) | {"error": "Too dark."}))
    again = [answered(admin.post(f"{LIST}/{job['id']}/retry")) for _ in range(2)]
    assert again[0] == again[1]
    assert (again[0]["status"], again[0]["job_id"] != job["id"]) == ("queued", True)
    assert one(admin, job["id"])["redriven_job_id"] == again[0]["job_id"]
    assert ada.wallet() == {"balance": 97, "reserved": 3}
    assert held(gpu)["job_id"] == again[0]["job_id"]


def test_what_completed_is_not_ordered_again(
    admin: Caller, ada: Caller, effect: str, gpu: Gpu
) -> None:
    job = ordered(ada, effect)
    answered(gpu.call("complete", lease_of(held(gpu)) | {"outputs": [output()]}))
    with nothing_written(admin.backend):
        for step in ("front", "retry"):
            refused(admin.post(f"{LIST}/{job['id']}/{step}"), 409, "not_possible_now")
        assert answered(admin.post(f"{LIST}/{job['id']}/cancel"))["status"] == "completed"


def test_a_user_sees_nothing_of_the_queue(ada: Caller, effect: str) -> None:
    job = ordered(ada, effect)
    with nothing_written(ada.backend):
        refused(ada.get(LIST), 403, "forbidden")
        refused(ada.get(f"{LIST}/{job['id']}"), 403, "forbidden")
        refused(ada.post(f"{LIST}/{job['id']}/front"), 403, "forbidden")


def test_a_job_that_was_never_dispatched_has_none(
    admin: Caller, ada: Caller, effect: str, backend: Backend
) -> None:
    job = ordered(ada, effect)
    with backend.databases.central() as session:
        session.delete(session.scalar(select(Dispatch).filter_by(tenant_job_id=UUID(job["id"]))))
    refused(admin.get(f"{LIST}/{job['id']}"), 404, "not_found")
