"""Dead letters over the API: seen with their story, ordered again, or laid to rest."""

from uuid import UUID, uuid4

import pytest
from sqlalchemy import select

from models.effects import Effect
from models.users import Role
from tasks import outcomes
from tests.webapp.calls import (
    Caller,
    Json,
    MakeCaller,
    answered,
    is_utc,
    nothing_written,
    order,
    ordered,
    refused,
)
from tests.webapp.gpus import Gpu, held, lease_of, output

LIST = "/api/admin/dead-letters"


@pytest.fixture
def admin(caller: MakeCaller) -> Caller:
    return caller(role=Role.ADMIN)


def lost(gpu: Gpu, owner: Caller, **said: str) -> Json:
    """A job of which a provider knows nothing any more."""
    job = ordered(owner, gpu.fleet)
    report = {"error": "404", "error_code": "provider_lost"} | said
    answered(gpu.call("fail", lease_of(held(gpu)) | report))
    return job


def listed(admin: Caller, gpu: Gpu, query: str = "") -> list[Json]:
    items: list[Json] = answered(admin.get(f"{LIST}?fleet={gpu.fleet}{query}"))["items"]
    return items


def test_a_letter_is_shown_with_its_story(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    job = lost(gpu, ada, error="e" * 400, trace="Traceback: line 7")
    [brief] = listed(admin, gpu)
    assert (brief["status"], brief["reason"], brief["job_id"]) == (
        "open",
        "provider_lost",
        job["id"],
    )
    assert (brief["fleet"], brief["workflow"], brief["attempts"]) == (gpu.fleet, gpu.fleet, 1)
    assert brief["error"] == "e" * 299 + "…"
    assert not {"trace", "history"} & set(brief)
    whole = answered(admin.get(f"{LIST}/{brief['id']}"))
    assert whole | {"error": brief["error"]} == brief | {
        "trace": "Traceback: line 7",
        "history": whole["history"],
    }
    assert whole["error"] == "e" * 400
    [only] = whole["history"]
    assert (only["attempt"], only["worker_id"], only["ending"]) == (1, gpu.worker_id, "fail")
    assert is_utc(only["began_at"])
    assert is_utc(whole["created_at"])


def test_letters_are_filtered_and_paged(
    admin: Caller, ada: Caller, caller: MakeCaller, gpu: Gpu
) -> None:
    bob = caller(tokens=9)
    jobs = [lost(gpu, who)["id"] for who in (ada, bob, ada)]
    assert [one["job_id"] for one in listed(admin, gpu)] == jobs[::-1]
    newest = listed(admin, gpu)[0]["id"]
    answered(admin.post(f"{LIST}/{newest}/discard"))
    assert [one["id"] for one in listed(admin, gpu, "&status=discarded")] == [newest]
    assert len(listed(admin, gpu, "&status=open")) == 2
    mine = listed(admin, gpu, f"&tenant={bob.person.tenant_id}")
    assert [one["job_id"] for one in mine] == [jobs[1]]
    assert answered(admin.get(f"{LIST}?fleet=nowhere"))["items"] == []
    first = answered(admin.get(f"{LIST}?fleet={gpu.fleet}&limit=1"))
    rest = answered(admin.get(f"{LIST}?fleet={gpu.fleet}&cursor={first['next_cursor']}"))
    assert len(rest["items"]) == 2
    assert listed(admin, gpu)[0]["id"] in [one["id"] for one in answered(admin.get(LIST))["items"]]
    refused(admin.get(f"{LIST}?status=lost"), 422, "invalid_input", "status")


def test_a_redrive_is_one_new_job_for_its_user(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    job = lost(gpu, ada)
    letter = listed(admin, gpu)[0]["id"]
    done = [answered(admin.post(f"{LIST}/{letter}/redrive")) for _ in range(2)]
    assert done[0] == done[1]
    assert (done[0]["status"], done[0]["resolved_by"]) == (
        "redriven",
        f"user:{admin.person.user_id}",
    )
    new = done[0]["redriven_job_id"]
    assert [one["id"] for one in answered(ada.get("/api/ai-jobs"))["items"]] == [new, job["id"]]
    assert ada.wallet() == {"balance": 97, "reserved": 3}
    lease = held(gpu)
    assert lease["job_id"] == new
    answered(gpu.call("complete", lease_of(lease) | {"outputs": [output()]}))
    assert answered(ada.get(f"/api/ai-jobs/{new}"))["status"] == "completed"


def test_too_few_tokens_are_said_and_the_letter_stays_open(
    admin: Caller, caller: MakeCaller, gpu: Gpu
) -> None:
    poor = caller(tokens=3)
    lost(gpu, poor)
    ordered(poor, gpu.fleet)
    letter = listed(admin, gpu)[0]["id"]
    with nothing_written(admin.backend):
        problem = refused(admin.post(f"{LIST}/{letter}/redrive"), 422, "insufficient_tokens")
    assert (problem["required_tokens"], problem["balance"]) == (3, 0)
    assert listed(admin, gpu)[0]["status"] == "open"


def test_what_is_switched_off_is_not_ordered_again(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    lost(gpu, ada)
    letter = listed(admin, gpu)[0]["id"]
    with admin.backend.databases.central() as session:
        session.scalars(select(Effect).filter_by(slug=gpu.fleet)).one().is_active = False
    with nothing_written(admin.backend):
        refused(admin.post(f"{LIST}/{letter}/redrive"), 422, "effect_unavailable")


def test_a_discard_may_be_repeated_and_says_why(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    lost(gpu, ada)
    letter = listed(admin, gpu)[0]["id"]
    note = {"note": "Tuesday's outage"}
    done = [answered(admin.post(f"{LIST}/{letter}/discard", json=note)) for _ in range(2)]
    assert done[0] == done[1]
    assert (done[0]["status"], done[0]["redriven_job_id"]) == ("discarded", None)
    refused(admin.post(f"{LIST}/{letter}/redrive"), 409, "not_possible_now")
    rows = answered(admin.get(f"/api/admin/audit?dispatch={done[0]['dispatch_id']}"))["items"]
    assert [row["details"]["note"] for row in rows if row["event"] == "dead_letter.discard"] == [
        "Tuesday's outage"
    ]


def test_a_letter_that_was_redriven_is_not_discarded(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    lost(gpu, ada)
    letter = listed(admin, gpu)[0]["id"]
    answered(admin.post(f"{LIST}/{letter}/redrive"))
    refused(admin.post(f"{LIST}/{letter}/discard"), 409, "not_possible_now")


def test_a_redriven_job_counts_for_the_limit_of_its_user_afterwards(
    admin: Caller, ada: Caller, gpu: Gpu
) -> None:
    lost(gpu, ada)
    for _ in range(5):
        ordered(ada, gpu.fleet)
    letter = listed(admin, gpu)[0]["id"]
    new = answered(admin.post(f"{LIST}/{letter}/redrive"))["redriven_job_id"]
    refused(order(ada, gpu.fleet), 429, "too_many_active_jobs")
    outcomes.cancel(ada.backend, ada.person.tenant_id, UUID(new))
    refused(order(ada, gpu.fleet), 429, "too_many_active_jobs")


@pytest.mark.parametrize("step", ["", "/redrive", "/discard"])
def test_a_letter_that_is_none_is_not_found(admin: Caller, step: str) -> None:
    method = "POST" if step else "GET"
    refused(admin.call(method, f"{LIST}/{uuid4()}{step}"), 404, "not_found")


def test_a_note_that_is_too_long_is_refused(admin: Caller, ada: Caller, gpu: Gpu) -> None:
    lost(gpu, ada)
    letter = listed(admin, gpu)[0]["id"]
    long = {"note": "x" * 501}
    refused(admin.post(f"{LIST}/{letter}/discard", json=long), 422, "invalid_input", "note")


def test_a_user_sees_no_letters_not_even_their_own(ada: Caller, gpu: Gpu) -> None:
    lost(gpu, ada)
    refused(ada.get(LIST), 403, "forbidden")
    refused(ada.post(f"{LIST}/{uuid4()}/redrive"), 403, "forbidden")
