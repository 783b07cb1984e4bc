"""From announcing a file to trusting it, over the real local store."""

from typing import Any
from uuid import UUID

import pytest

from models.files import File
from tests.models.media_files import film, picture
from tests.webapp.calls import (
    NOBODY,
    PNG,
    Caller,
    MakeCaller,
    announce,
    answered,
    downloaded,
    has_file,
    is_utc,
    nothing_written,
    put,
    refused,
    uploaded,
)


def make_video(caller: Caller, file_id: str, **given: Any) -> Any:
    return caller.post("/api/videos", json={"original_file_id": file_id} | given)


def file_row(caller: Caller, file_id: str) -> File:
    with caller.backend.databases.tenant(caller.person.tenant_id) as session:
        return session.get_one(File, UUID(file_id))


def test_announcing_a_file_tells_where_to_put_it(caller: MakeCaller) -> None:
    announced = announce(caller())
    assert set(announced) == {"file", "upload"}
    file, upload = announced["file"], announced["upload"]
    assert set(file) == {"id", "filename", "mime_type", "size_bytes", "status", "created_at"}
    assert (file["filename"], file["mime_type"]) == ("cat.png", "image/png")
    assert (file["size_bytes"], file["status"]) == (len(PNG), "pending")
    assert is_utc(file["created_at"])
    assert set(upload) == {"method", "url", "headers", "expires_at"}
    assert upload["method"] == "PUT"
    assert upload["headers"] == {"Content-Type": "image/png"}
    assert is_utc(upload["expires_at"])
    assert "cat" not in upload["url"]


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("filename", "", "invalid_input"),
        ("filename", "x" * 256, "invalid_input"),
        ("filename", None, "invalid_input"),
        ("mime_type", "", "invalid_input"),
        ("size_bytes", 0, "invalid_input"),
        ("size_bytes", -1, "invalid_input"),
        ("size_bytes", 1.5, "invalid_input"),
        ("size_bytes", "many", "invalid_input"),
        ("size_bytes", 2 * 1024**3 + 1, "invalid_input"),
        ("size_bytes", 2**63, "invalid_input"),
        ("tenant_id", NOBODY, "invalid_input"),
        ("mime_type", "text/html", "media_not_allowed"),
        ("mime_type", "image/svg+xml", "media_not_allowed"),
        ("mime_type", "application/octet-stream", "media_not_allowed"),
    ],
)
def test_a_file_we_would_not_take_is_refused_before_it_is_sent(
    caller: MakeCaller, field: str, value: Any, code: str
) -> None:
    ada = caller()
    new = {"filename": "cat.png", "mime_type": "image/png", "size_bytes": 10} | {field: value}
    with nothing_written(ada.backend):
        answer = ada.post("/api/videos/uploads", json=new)
        refused(answer, 422, code, field)


def test_an_image_is_put_and_becomes_a_video(caller: MakeCaller) -> None:
    ada = caller()
    file_id = uploaded(ada)
    assert answered(make_video(ada, file_id), 201)["kind"] == "image"
    row = file_row(ada, file_id)
    assert (row.status, row.kind, row.width, row.height) == ("stored", "image", 8, 6)
    assert row.object_key == f"tenants/{ada.person.tenant_id}/files/{file_id}.png"


def test_a_film_is_put_and_becomes_a_video(caller: MakeCaller) -> None:
    ada = caller()
    file_id = uploaded(ada, film("mp4", "libx264", seconds=0.2), "video/mp4")
    assert answered(make_video(ada, file_id), 201)["kind"] == "video"
    assert file_row(ada, file_id).duration_seconds == pytest.approx(0.2, abs=0.1)


def test_asking_twice_makes_one_video(caller: MakeCaller) -> None:
    ada = caller()
    file_id = uploaded(ada)
    first, second = (answered(make_video(ada, file_id), 201) for _ in range(2))
    assert first["id"] == second["id"]


def test_a_file_that_was_never_sent_is_missing(caller: MakeCaller) -> None:
    ada = caller()
    file_id = announce(ada)["file"]["id"]
    with nothing_written(ada.backend):
        refused(make_video(ada, file_id), 422, "upload_missing", "original_file_id")


@pytest.mark.parametrize("body", [PNG + b"x", PNG[:-1], b""])
def test_the_address_takes_exactly_what_was_announced(caller: MakeCaller, body: bytes) -> None:
    ada = caller()
    announced = announce(ada)
    refused(put(ada, announced["upload"], body), 422, "upload_size_mismatch")
    refused(make_video(ada, announced["file"]["id"]), 422, "upload_missing")


def test_the_address_takes_the_announced_type_only(caller: MakeCaller) -> None:
    ada = caller()
    target = announce(ada)["upload"]
    answer = put(ada, target, PNG, **{"Content-Type": "text/html"})
    refused(answer, 422, "media_not_allowed")


def test_the_address_is_good_for_this_file_only(caller: MakeCaller) -> None:
    ada = caller()
    ours, theirs = announce(ada)["upload"], announce(caller())["upload"]
    query = ours["url"].partition("?")[2]
    moved = ours | {"url": theirs["url"].partition("?")[0] + "?" + query}
    refused(put(ada, moved, PNG), 403, "forbidden")


def test_an_object_of_another_size_is_refused(caller: MakeCaller) -> None:
    """Not every S3 server enforces the length that was signed, so we look again."""
    ada = caller()
    file_id = announce(ada)["file"]["id"]
    ada.backend.store.write(file_row(ada, file_id).object_key, PNG + b"x", "image/png")
    with nothing_written(ada.backend):
        problem = refused(make_video(ada, file_id), 422, "upload_size_mismatch")
    assert str(len(PNG)) in problem["detail"]


@pytest.mark.parametrize(
    ("body", "mime_type"),
    [
        (PNG[: len(PNG) // 2], "image/png"),
        (b"<html><script>alert(1)</script></html>", "image/png"),
        (picture("JPEG"), "image/png"),
        (PNG, "video/mp4"),
        (b"\x00" * 64, "image/gif"),
    ],
    ids=["truncated", "html as png", "jpeg as png", "png as mp4", "zeros"],
)
def test_a_file_that_is_not_what_it_claims_is_unreadable(
    caller: MakeCaller, body: bytes, mime_type: str
) -> None:
    ada = caller()
    file_id = uploaded(ada, body, mime_type)
    with nothing_written(ada.backend):
        problem = refused(make_video(ada, file_id), 422, "media_unreadable", "original_file_id")
    assert "/tmp" not in problem["detail"]  # noqa: S108
    assert file_row(ada, file_id).status == "pending"


def test_what_was_accepted_stays_although_the_address_still_works(caller: MakeCaller) -> None:
    ada = caller()
    announced = announce(ada)
    put(ada, announced["upload"], PNG)
    video = answered(make_video(ada, announced["file"]["id"]), 201)
    other = bytes(len(PNG))
    assert put(ada, announced["upload"], other).status_code == 200
    assert downloaded(ada, video["original_file_url"]) == PNG
    assert answered(make_video(ada, announced["file"]["id"]), 201)["id"] == video["id"]


def test_a_video_of_an_unknown_file_is_not_found(caller: MakeCaller) -> None:
    ada = caller()
    with nothing_written(ada.backend):
        refused(make_video(ada, NOBODY), 404, "not_found")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("original_file_id", None),
        ("original_file_id", "cat.png"),
        ("title", ""),
        ("title", "x" * 201),
        ("title", 7),
        ("status", "completed"),
    ],
)
def test_a_bad_video_is_refused_by_its_field(caller: MakeCaller, field: str, value: Any) -> None:
    ada = caller()
    body = {"original_file_id": str(has_file(ada))} | {field: value}
    with nothing_written(ada.backend):
        refused(ada.post("/api/videos", json=body), 422, "invalid_input", field)
