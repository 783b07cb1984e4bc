"""Ordering a job: its shape, what it costs, how it ends."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from redis import Redis

from models import dispatches, effects, ledger_audit
from models.fleets import Fleet
from tests.webapp.calls import (
    NOBODY,
    Caller,
    Json,
    MakeCaller,
    answered,
    completed,
    downloaded,
    failed,
    has_file,
    has_video,
    is_utc,
    leased,
    new_effect,
    nothing_written,
    order,
    ordered,
    refused,
)

FIELDS = {
    "id", "effect_id", "effect", "video_id", "status", "progress", "queue_position", "eta_seconds",
    "price_tokens", "refunded", "attempts", "outputs", "error", "created_at", "started_at",
    "completed_at",
}  # fmt: skip


def shown(caller: Caller, job: Json) -> Json:
    return answered(caller.get(f"/api/ai-jobs/{job['id']}"))


def adds_up(caller: Caller) -> bool:
    with caller.backend.databases.tenant(caller.person.tenant_id) as session:
        return not list(ledger_audit.disagreements(session))


def test_an_order_is_answered_with_the_whole_job(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    effect = answered(ada.get("/api/effects/image-blur"))
    video_id = str(has_video(ada))
    job = ordered(ada, "image-blur", video_id=video_id, inputs={"radius": 7})
    assert set(job) == FIELDS
    assert (job["effect_id"], job["effect"]) == (effect["id"], "image-blur")
    assert (job["video_id"], job["status"]) == (video_id, "queued")
    assert (job["progress"], job["attempts"], job["outputs"]) == (0, 0, [])
    assert (job["price_tokens"], job["refunded"], job["error"]) == (5, False, None)
    assert is_utc(job["created_at"])
    assert job["started_at"] is None
    assert job["completed_at"] is None
    unplaced = {"queue_position": None, "eta_seconds": None}
    assert shown(ada, job) | unplaced == job | unplaced


def test_an_order_takes_its_price_and_tells_a_worker(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    effect = new_effect(ada.backend, cost=30)
    job = ordered(ada, effect)
    assert ada.wallet() == {"balance": 70, "reserved": 30}
    with ada.backend.databases.central() as session:
        dispatch = dispatches.find_by_job(session, ada.person.tenant_id, UUID(job["id"]))
        assert dispatch is not None
        assert dispatch.status == "queued"
    ada.backend.later.close()  # what is left for a moment later is done now
    with Redis.from_url(ada.backend.settings.redis_url) as redis:
        assert redis.llen(effect) == 1  # the fleet is called like the effect here
    assert adds_up(ada)


def test_an_effect_may_be_named_by_id_or_slug(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    by_slug = ordered(ada, "colour-card")
    assert ordered(ada, by_slug["effect_id"])["effect"] == "colour-card"


def test_media_may_be_given_as_a_checked_file(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    job = ordered(ada, "image-invert", inputs={"image": str(has_file(ada))})
    assert (job["video_id"], job["status"]) == (None, "queued")


def test_a_job_that_completes_keeps_its_price_and_shows_its_outputs(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    job = ordered(ada, "image-invert", video_id=str(has_video(ada)))
    completed(ada, job["id"], b"a negative")
    done = shown(ada, job)
    assert (done["status"], done["progress"], done["attempts"]) == ("completed", 1, 1)
    assert (done["refunded"], done["error"], done["queue_position"]) == (False, None, None)
    assert is_utc(done["started_at"])
    assert is_utc(done["completed_at"])
    [output] = done["outputs"]
    assert set(output) == {"name", "kind", "mime_type", "size_bytes", "url"}
    assert (output["name"], output["kind"]) == ("result.png", "image")
    assert (output["mime_type"], output["size_bytes"]) == ("image/png", 10)
    assert downloaded(ada, output["url"]) == b"a negative"
    assert ada.wallet() == {"balance": 95, "reserved": 0}
    assert adds_up(ada)


def test_a_job_that_fails_gives_its_price_back_and_says_why(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    job = ordered(ada, "image-invert", video_id=str(has_video(ada)))
    failed(ada, job["id"])
    lost = shown(ada, job)
    assert (lost["status"], lost["refunded"], lost["outputs"]) == ("failed", True, [])
    reason = {"code": "execution_failed", "message": "The effect could not be applied."}
    assert lost["error"] == reason
    assert is_utc(lost["completed_at"])
    assert "Traceback" not in str(lost)
    assert ada.wallet() == {"balance": 100, "reserved": 0}
    assert adds_up(ada)


def test_progress_and_place_are_shown_while_it_waits_and_runs(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    effect = new_effect(ada.backend)
    first, second = ordered(ada, effect), ordered(ada, effect)
    assert [shown(ada, job)["queue_position"] for job in (first, second)] == [0, 1]
    assert shown(ada, first)["eta_seconds"] is None  # nobody knows before one has run
    lease = leased(ada.backend, first["id"])
    with ada.backend.databases.central() as session:
        dispatches.extend(session, lease, seconds=60, progress=0.25)
        effect_id = UUID(first["effect_id"])
        effects.record_duration(session, effect_id, seconds=40)
    running = shown(ada, first)
    assert (running["status"], running["progress"]) == ("processing", 0.25)
    assert (running["attempts"], running["queue_position"]) == (1, None)
    assert running["eta_seconds"] == 30
    assert is_utc(running["started_at"])
    waiting = shown(ada, second)
    assert (waiting["queue_position"], waiting["eta_seconds"]) == (0, 60)  # one is half done
    assert answered(ada.get(f"/api/effects/{effect}"))["estimated_seconds"] == 40


@pytest.mark.parametrize("running", [False, True])
def test_cancelling_refunds_once_however_often_it_is_asked(
    caller: MakeCaller, running: bool
) -> None:
    ada = caller(tokens=100)
    job = ordered(ada, "image-invert", video_id=str(has_video(ada)))
    if running:
        leased(ada.backend, job["id"])
    for _ in range(3):
        gone = answered(ada.post(f"/api/ai-jobs/{job['id']}/cancel"))
        assert set(gone) == FIELDS
        assert (gone["status"], gone["refunded"]) == ("cancelled", True)
        assert gone["error"] == {"code": "cancelled", "message": "The job was cancelled."}
        assert ada.wallet() == {"balance": 100, "reserved": 0}
    assert adds_up(ada)


def test_a_job_that_has_ended_stays_as_it_ended(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    job = ordered(ada)
    completed(ada, job["id"])
    with nothing_written(ada.backend):
        assert answered(ada.post(f"/api/ai-jobs/{job['id']}/cancel"))["status"] == "completed"


@pytest.mark.parametrize("name", [NOBODY, "job"])
def test_an_unknown_job_is_not_found(caller: MakeCaller, name: str) -> None:
    ada = caller()
    refused(ada.get(f"/api/ai-jobs/{name}"), 404, "not_found")
    refused(ada.post(f"/api/ai-jobs/{name}/cancel"), 404, "not_found")


def test_too_few_tokens_says_how_many_are_needed(caller: MakeCaller) -> None:
    ada = caller(tokens=4)
    video_id = has_video(ada)
    with nothing_written(ada.backend):
        answer = order(ada, "image-invert", video_id=str(video_id))
        problem = refused(answer, 422, "insufficient_tokens")
    assert (problem["required_tokens"], problem["balance"]) == (5, 4)
    assert problem["detail"] == "This costs 5 tokens; the wallet holds 4."


def test_an_empty_wallet_is_a_wallet_with_nothing(caller: MakeCaller) -> None:
    ada = caller()
    with nothing_written(ada.backend):
        problem = refused(order(ada), 422, "insufficient_tokens")
    assert (problem["required_tokens"], problem["balance"]) == (1, 0)


def test_the_sixth_active_job_has_to_wait(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    active = [ordered(ada) for _ in range(5)]
    with nothing_written(ada.backend):
        answer = order(ada)
        problem = refused(answer, 429, "too_many_active_jobs")
    assert int(answer.headers["Retry-After"]) == problem["retry_after_seconds"] > 0
    ada.post(f"/api/ai-jobs/{active[0]['id']}/cancel")
    ordered(ada)


def test_eight_orders_at_once_make_five_jobs(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: order(ada), range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] * 5 + [429] * 3
    assert ada.wallet() == {"balance": 95, "reserved": 5}
    assert adds_up(ada)


def switch_off(caller: Caller, slug: str, what: str) -> None:
    with caller.backend.databases.central() as session:
        effect = effects.get(session, slug)
        if what == "effect":
            effect.is_active = False
        elif what == "workflow":
            effect.workflow.is_active = False
        else:
            session.query(Fleet).filter_by(slug=slug).one().is_active = False


@pytest.mark.parametrize("what", ["effect", "workflow", "fleet"])
def test_an_effect_that_is_switched_off_is_unavailable(caller: MakeCaller, what: str) -> None:
    ada = caller(tokens=100)
    slug = new_effect(ada.backend)
    switch_off(ada, slug, what)
    with nothing_written(ada.backend):
        refused(order(ada, slug), 422, "effect_unavailable", "effect_id")


def test_an_effect_that_no_fleet_serves_is_unavailable(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    slug = new_effect(ada.backend, on_a_fleet=False)
    with nothing_written(ada.backend):
        problem = refused(order(ada, slug), 422, "effect_unavailable", "effect_id")
    assert "No machines" in problem["detail"]


def test_an_unknown_effect_is_not_found(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    with nothing_written(ada.backend):
        for name in ("nothing", NOBODY):
            refused(order(ada, name), 404, "not_found")


@pytest.mark.parametrize(
    ("effect", "given", "field"),
    [
        ("image-blur", {"inputs": {"radius": 99}}, "inputs.radius"),
        ("image-blur", {"inputs": {"radius": "4"}}, "inputs.radius"),
        ("image-blur", {"inputs": {"radius": True}}, "inputs.radius"),
        ("image-blur", {"inputs": {"colour": "red"}}, "inputs.colour"),
        ("image-blur", {"inputs": {"image": "cat.png"}}, "inputs.image"),
        ("image-scale", {"inputs": {"crop": "left"}}, "inputs.crop"),
        ("thumbnail", {"inputs": {"width": 4096}}, "inputs.width"),
        ("image-blur", {}, "video_id"),
        ("colour-card", {"video_id": NOBODY}, "video_id"),
        ("colour-card", {"video_id": "cat"}, "video_id"),
        ("colour-card", {"inputs": []}, "inputs"),
        ("colour-card", {"inputs": None}, "inputs"),
        ("colour-card", {"price_tokens": 0}, "price_tokens"),
        ("colour-card", {"priority": 9}, "priority"),
        ("", {}, "effect_id"),
        ("x" * 101, {}, "effect_id"),
    ],
)
def test_a_bad_order_is_refused_by_its_field(
    caller: MakeCaller, effect: str, given: dict[str, Any], field: str
) -> None:
    ada = caller(tokens=100)
    with nothing_written(ada.backend):
        refused(order(ada, effect, **given), 422, "invalid_input", field)


def test_media_of_the_wrong_kind_is_refused(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    video_id, file_id = has_video(ada, "video"), has_file(ada, "video")
    with nothing_written(ada.backend):
        answer = order(ada, "image-invert", video_id=str(video_id))
        refused(answer, 422, "invalid_input", "video_id")
        answer = order(ada, "image-invert", inputs={"image": str(file_id)})
        refused(answer, 422, "invalid_input", "inputs.image")


def test_a_file_that_was_never_checked_is_refused(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    file_id = has_file(ada, checked=False)
    with nothing_written(ada.backend):
        answer = order(ada, "image-invert", inputs={"image": str(file_id)})
        refused(answer, 422, "invalid_input", "inputs.image")


def test_unknown_media_is_not_found(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    with nothing_written(ada.backend):
        refused(order(ada, "image-invert", video_id=NOBODY), 404, "not_found")
        refused(order(ada, "image-invert", inputs={"image": NOBODY}), 404, "not_found")
