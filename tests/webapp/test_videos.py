"""Videos: their shape, how they follow their jobs, lists of them, and deleting them."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from models import object_paths
from models.base import utcnow
from models.files import File
from models.videos import Video
from tasks import expiry, outcomes, sweepers
from tests.webapp.calls import (
    NOBODY,
    PNG,
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
    nothing_written,
    order,
    ordered,
    refused,
)

FIELDS = {
    "id", "title", "status", "kind", "original_file_url", "processed_file_url", "processed_files",
    "progress", "queue_position", "eta_seconds", "error", "job_id", "created_at", "expires_at",
}  # fmt: skip


def shown(caller: Caller, video_id: Any) -> Json:
    return answered(caller.get(f"/api/videos/{video_id}"))


def test_a_new_video_shows_all_its_fields(caller: MakeCaller) -> None:
    ada = caller()
    new = {"original_file_id": str(has_file(ada)), "title": "Katze 🐈"}
    video = answered(ada.post("/api/videos", json=new), 201)
    assert set(video) == FIELDS
    assert (video["title"], video["status"], video["kind"]) == ("Katze 🐈", "uploaded", "image")
    assert (video["progress"], video["processed_files"]) == (0, [])
    for empty in ("processed_file_url", "queue_position", "eta_seconds", "error", "job_id"):
        assert video[empty] is None
    assert is_utc(video["created_at"])
    assert video["expires_at"] is None or is_utc(video["expires_at"])
    assert downloaded(ada, video["original_file_url"]) == PNG
    again = shown(ada, video["id"])
    assert again | {"original_file_url": ""} == video | {"original_file_url": ""}


def test_without_a_title_it_is_called_like_its_file(caller: MakeCaller) -> None:
    ada = caller()
    new = {"original_file_id": str(has_file(ada))}
    assert answered(ada.post("/api/videos", json=new), 201)["title"] == "cat.png"


def test_a_video_follows_its_job_to_the_result(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    video_id = has_video(ada)
    job = ordered(ada, "image-invert", video_id=str(video_id))
    waiting = shown(ada, video_id)
    assert (waiting["status"], waiting["job_id"]) == ("processing", job["id"])
    assert isinstance(waiting["queue_position"], int)

    completed(ada, job["id"], b"the result")
    done = shown(ada, video_id)
    assert (done["status"], done["progress"], done["error"]) == ("completed", 1, None)
    assert done["queue_position"] is None
    [result] = done["processed_files"]
    assert set(result) == {"name", "kind", "mime_type", "size_bytes", "url"}
    assert (result["name"], result["kind"], result["mime_type"], result["size_bytes"]) == (
        "result.png", "image", "image/png", 10,
    )  # fmt: skip
    assert downloaded(ada, done["processed_file_url"]) == b"the result"
    assert downloaded(ada, result["url"]) == b"the result"


def test_a_video_follows_its_job_to_a_failure(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    video_id = has_video(ada)
    failed(ada, ordered(ada, "image-invert", video_id=str(video_id))["id"])
    video = shown(ada, video_id)
    assert (video["status"], video["error"]) == ("failed", "The effect could not be applied.")
    assert video["processed_file_url"] is None


def test_a_failed_video_can_be_tried_again(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    video_id = has_video(ada)
    failed(ada, ordered(ada, "image-invert", video_id=str(video_id))["id"])
    second = ordered(ada, "image-invert", video_id=str(video_id))
    video = shown(ada, video_id)
    assert (video["status"], video["error"]) == ("processing", None)
    assert video["job_id"] == second["id"]


def test_a_video_whose_job_is_cancelled_says_so(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    video_id = has_video(ada)
    job = ordered(ada, "image-invert", video_id=str(video_id))
    ada.post(f"/api/ai-jobs/{job['id']}/cancel")
    video = shown(ada, video_id)
    assert (video["status"], video["error"]) == ("failed", "The job was cancelled.")


def test_a_video_goes_on_processing_while_its_job_is_given_back(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    video_id = has_video(ada)
    job = ordered(ada, "image-invert", video_id=str(video_id))
    outcomes.requeue(ada.backend, leased(ada.backend, job["id"]), reason="Spot")
    assert shown(ada, video_id)["status"] == "processing"


def test_an_expired_video_has_no_addresses_and_takes_no_job(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    video_id = has_video(ada)
    with ada.backend.databases.tenant(ada.person.tenant_id) as session:
        video = session.get_one(Video, video_id)
        video.status, video.expires_at = "expired", utcnow()
    expired = shown(ada, video_id)
    assert (expired["status"], expired["original_file_url"]) == ("expired", None)
    assert is_utc(expired["expires_at"])
    with nothing_written(ada.backend):
        answer = order(ada, "image-invert", video_id=str(video_id))
        refused(answer, 409, "not_possible_now")


def test_media_that_ran_out_shows_no_addresses(caller: MakeCaller) -> None:
    """Neither its video nor its jobs do; what it cost, and that it completed, stays."""
    ada = caller(tokens=100)
    video_id = has_video(ada)
    with_video = ordered(ada, "image-invert", video_id=str(video_id))
    completed(ada, with_video["id"])
    without = ordered(ada, "colour-card")
    completed(ada, without["id"])
    before = ada.wallet()
    sweepers.run_once(ada.backend)
    dated = shown(ada, video_id)
    assert dated["processed_file_url"]
    expires_at = datetime.fromisoformat(dated["expires_at"])
    assert timedelta(days=29) < expires_at - utcnow() < timedelta(days=30)

    expiry.run_once(ada.backend, now=utcnow() + timedelta(days=31))
    video = shown(ada, video_id)
    assert (video["status"], video["progress"]) == ("expired", 1)
    assert (video["original_file_url"], video["processed_file_url"]) == (None, None)
    assert video["processed_files"] == []
    assert answered(ada.get("/api/videos"))["items"] == [video]
    for job_id in (with_video["id"], without["id"]):
        job = answered(ada.get(f"/api/ai-jobs/{job_id}"))
        assert (job["status"], job["outputs"], job["progress"]) == ("completed", [], 1)
    assert ada.wallet() == before
    with nothing_written(ada.backend):
        again = order(ada, "image-invert", video_id=str(video_id))
        assert "have expired" in refused(again, 409, "not_possible_now")["detail"]
    assert ada.delete(f"/api/videos/{video_id}").status_code == 204


def test_deleting_a_video_deletes_its_files_from_the_store(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    store, video_id = ada.backend.store, has_video(ada)
    job = ordered(ada, "image-invert", video_id=str(video_id))
    completed(ada, job["id"])
    video = shown(ada, video_id)
    with ada.backend.databases.tenant(ada.person.tenant_id) as session:
        keys = [file.object_key for file in session.scalars(select(File))]
    assert len(keys) == 2
    assert all(store.head(key) for key in keys)

    gone = ada.delete(f"/api/videos/{video_id}")
    assert (gone.status_code, gone.data) == (204, b"")
    assert [store.head(key) for key in keys] == [None, None]
    for url in (video["original_file_url"], video["processed_file_url"]):
        refused(ada.app.test_client().get(url), 404, "not_found")
    refused(ada.get(f"/api/videos/{video_id}"), 404, "not_found")
    assert answered(ada.get("/api/videos"))["items"] == []
    assert answered(ada.get(f"/api/ai-jobs/{job['id']}"))["outputs"] == []


def test_deleting_twice_is_not_found(caller: MakeCaller) -> None:
    ada = caller()
    video_id = has_video(ada)
    assert ada.delete(f"/api/videos/{video_id}").status_code == 204
    with nothing_written(ada.backend):
        refused(ada.delete(f"/api/videos/{video_id}"), 404, "not_found")


def test_a_deleted_video_takes_no_job_and_gives_back_no_file(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    file_id = has_file(ada)
    new = {"original_file_id": str(file_id)}
    video_id = answered(ada.post("/api/videos", json=new), 201)["id"]
    ada.delete(f"/api/videos/{video_id}")
    with nothing_written(ada.backend):
        refused(order(ada, "image-invert", video_id=video_id), 404, "not_found")
        refused(ada.post("/api/videos", json=new), 404, "not_found")


@pytest.mark.parametrize("running", [False, True])
def test_a_video_in_use_is_not_deleted(caller: MakeCaller, running: bool) -> None:
    ada = caller(tokens=100)
    video_id = has_video(ada)
    job = ordered(ada, "image-invert", video_id=str(video_id))
    if running:
        leased(ada.backend, job["id"])
    with nothing_written(ada.backend):
        refused(ada.delete(f"/api/videos/{video_id}"), 409, "video_in_use")
    ada.post(f"/api/ai-jobs/{job['id']}/cancel")
    assert ada.delete(f"/api/videos/{video_id}").status_code == 204


@pytest.mark.parametrize("name", [NOBODY, "cat", "7"])
def test_an_unknown_video_is_not_found(caller: MakeCaller, name: str) -> None:
    ada = caller()
    refused(ada.get(f"/api/videos/{name}"), 404, "not_found")
    refused(ada.delete(f"/api/videos/{name}"), 404, "not_found")


def test_the_list_is_newest_first_and_has_whole_videos(caller: MakeCaller) -> None:
    ada = caller()
    made = [str(has_video(ada)) for _ in range(3)]
    listed = answered(ada.get("/api/videos"))
    assert [video["id"] for video in listed["items"]] == made[::-1]
    assert listed["next_cursor"] is None
    assert all(set(video) == FIELDS for video in listed["items"])


def test_a_download_is_never_shown_as_a_page(caller: MakeCaller) -> None:
    ada = caller()
    url = shown(ada, has_video(ada))["original_file_url"]
    answer = ada.app.test_client().get(url, buffered=True)
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="cat.png"')
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]


def test_part_of_a_file_can_be_asked_for(caller: MakeCaller) -> None:
    ada = caller()
    url = shown(ada, has_video(ada))["original_file_url"]
    client = ada.app.test_client()
    part = client.get(url, headers={"Range": "bytes=0-3"}, buffered=True)
    assert (part.status_code, part.data) == (206, PNG[:4])
    beyond = client.get(url, headers={"Range": "bytes=99999-"}, buffered=True)
    refused(beyond, 416, "range_not_satisfiable")
    assert beyond.headers["Content-Range"] == f"bytes */{len(PNG)}"


def test_what_lies_where(caller: MakeCaller) -> None:
    """Results lie under their tenant and job, so that a bucket can be read by a person."""
    ada = caller(tokens=100)
    job = ordered(ada)
    completed(ada, job["id"])
    url = answered(ada.get(f"/api/ai-jobs/{job['id']}"))["outputs"][0]["url"]
    key = url.partition("/storage/")[2].partition("?")[0]
    assert key.startswith(f"tenants/{ada.person.tenant_id}/ai-jobs/{UUID(job['id'])}/output-")
    assert object_paths.check(key)
