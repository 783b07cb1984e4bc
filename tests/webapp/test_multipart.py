"""Large files go in parts. Here everything above a hundred bytes is large."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from tests.fixtures import MakePerson
from tests.models.media_files import picture
from tests.webapp.calls import (
    PNG,
    Caller,
    Json,
    announce,
    answered,
    downloaded,
    is_utc,
    nothing_written,
    put,
    refused,
)
from webapp import create_app

PART_BYTES = 1000
LARGE = picture("PNG", (40, 40), noise=True)


@pytest.fixture
def ada(app: Flask, person: MakePerson, monkeypatch: pytest.MonkeyPatch) -> Iterator[Caller]:
    monkeypatch.setattr("models.object_store.PART_BYTES", PART_BYTES)
    settings = app.extensions["comfyfleet"].settings
    parted = create_app(replace(settings, multipart_from_bytes=len(PNG)))
    yield Caller(parted, person())
    parted.extensions["comfyfleet"].close()


def pieces(body: bytes) -> list[bytes]:
    return [body[start : start + PART_BYTES] for start in range(0, len(body), PART_BYTES)]


def send_parts(caller: Caller, announced: Json, body: bytes = LARGE) -> list[Json]:
    """Put every part; returns what `complete_url` takes."""
    sent = []
    for part, piece in zip(announced["upload"]["parts"], pieces(body), strict=True):
        answer = put(caller, part, piece)
        assert answer.status_code == 200
        sent.append({"number": part["number"], "etag": answer.headers["ETag"]})
    return sent


def join(caller: Caller, announced: Json, parts: Any) -> Any:
    return caller.post(announced["upload"]["complete_url"], json={"parts": parts})


def test_a_large_file_is_sent_in_parts(ada: Caller) -> None:
    announced = announce(ada, LARGE)
    upload = announced["upload"]
    assert set(upload) == {"parts", "complete_url", "abort_url", "expires_at"}
    assert is_utc(upload["expires_at"])
    for number, part in enumerate(upload["parts"], start=1):
        assert set(part) == {"number", "url", "headers", "size_bytes"}
        assert part["number"] == number
    assert [part["size_bytes"] for part in upload["parts"]] == [len(p) for p in pieces(LARGE)]
    assert len(upload["parts"]) > 2

    joined = answered(join(ada, announced, send_parts(ada, announced)))
    assert joined == announced["file"]
    video = answered(ada.post("/api/videos", json={"original_file_id": joined["id"]}), 201)
    assert downloaded(ada, video["original_file_url"]) == LARGE


def test_up_to_the_limit_it_is_one_put(ada: Caller) -> None:
    assert "url" in announce(ada, PNG)["upload"]


def test_joining_may_be_repeated(ada: Caller) -> None:
    announced = announce(ada, LARGE)
    parts = send_parts(ada, announced)
    for _ in range(2):
        answered(join(ada, announced, parts))


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (lambda parts: parts[:-1], "upload_size_mismatch"),
        (lambda parts: parts[::-1], "invalid_input"),
        (lambda parts: [*parts[:-1], parts[-1] | {"etag": "another"}], "upload_missing"),
        (lambda _: [], "invalid_input"),
        (lambda parts: [parts[0] | {"number": 0}], "invalid_input"),
        (lambda _: "all", "invalid_input"),
    ],
    ids=["one missing", "wrong order", "wrong etag", "none", "number 0", "no list"],
)
def test_parts_that_do_not_fit_are_not_joined(ada: Caller, changed: Any, code: str) -> None:
    announced = announce(ada, LARGE)
    parts = send_parts(ada, announced)
    with nothing_written(ada.backend):
        refused(join(ada, announced, changed(parts)), 422, code)
    file_id = announced["file"]["id"]
    missing = ada.post("/api/videos", json={"original_file_id": file_id})
    refused(missing, 422, "upload_missing")
    answered(join(ada, announced, parts))  # and nothing was lost by the mistake


def test_a_part_has_to_have_its_size(ada: Caller) -> None:
    part = announce(ada, LARGE)["upload"]["parts"][0]
    refused(put(ada, part, b"short"), 422, "upload_size_mismatch")


def test_giving_up_drops_the_parts_and_may_be_repeated(ada: Caller) -> None:
    announced = announce(ada, LARGE)
    parts = send_parts(ada, announced)
    for _ in range(2):
        gone = ada.post(announced["upload"]["abort_url"])
        assert (gone.status_code, gone.data) == (204, b"")
    refused(join(ada, announced, parts), 404, "not_found")
    refused(put(ada, announced["upload"]["parts"][0], pieces(LARGE)[0]), 404, "not_found")


def test_a_small_file_has_no_parts_to_join_or_drop(ada: Caller) -> None:
    file_id = announce(ada, PNG)["file"]["id"]
    address = f"/api/videos/uploads/{file_id}"
    sent = {"parts": [{"number": 1, "etag": "x"}]}
    with nothing_written(ada.backend):
        refused(ada.post(f"{address}/complete", json=sent), 409, "not_possible_now")
        refused(ada.post(f"{address}/abort"), 409, "not_possible_now")
