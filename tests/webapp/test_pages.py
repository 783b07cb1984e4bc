"""Lists: newest first, every row once, whatever is added meanwhile; and cursors that are none."""

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import update

from models.jobs import Job
from tests.webapp.calls import (
    NOBODY,
    Caller,
    Json,
    MakeCaller,
    answered,
    has_video,
    ordered,
    refused,
)
from webapp import pages

LISTS = ["/api/effects", "/api/videos", "/api/ai-jobs", "/api/wallet/transactions"]


def walk(caller: Caller, address: str, between: Callable[[], Any] = lambda: None) -> Iterator[Json]:
    cursor = ""
    while True:
        page = answered(caller.get(f"{address}{'&' if '?' in address else '?'}limit=2{cursor}"))
        assert len(page["items"]) <= 2
        yield from page["items"]
        if page["next_cursor"] is None:
            return
        cursor = f"&cursor={page['next_cursor']}"
        between()


def test_every_row_comes_once_while_rows_are_added(caller: MakeCaller) -> None:
    ada = caller()
    made = [str(has_video(ada)) for _ in range(5)]
    walked = [row["id"] for row in walk(ada, "/api/videos", between=lambda: has_video(ada))]
    assert walked == made[::-1]


def test_no_row_is_lost_when_one_is_deleted_meanwhile(caller: MakeCaller) -> None:
    ada = caller()
    made = [str(has_video(ada)) for _ in range(6)]
    newest = iter(made[::-1])
    walked = walk(ada, "/api/videos", between=lambda: ada.delete(f"/api/videos/{next(newest)}"))
    assert [row["id"] for row in walked] == made[::-1]


def test_rows_of_the_same_moment_come_once_each(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    made = {ordered(ada)["id"] for _ in range(5)}
    with ada.backend.databases.tenant(ada.person.tenant_id) as session:
        session.execute(update(Job).values(created_at=datetime(2026, 1, 2, tzinfo=UTC)))
    walked = [row["id"] for row in walk(ada, "/api/ai-jobs")]
    assert len(walked) == 5
    assert set(walked) == made
    assert {row["created_at"] for row in walk(ada, "/api/ai-jobs")} == {"2026-01-02T00:00:00Z"}


def test_effects_are_paged_too(caller: MakeCaller) -> None:
    ada = caller()
    walked = [row["slug"] for row in walk(ada, "/api/effects")]
    assert sorted(walked) == sorted(set(walked))
    assert len(walked) == 8


def test_transactions_are_paged_too(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    for _ in range(3):
        ordered(ada)
    amounts = [row["amount"] for row in walk(ada, "/api/wallet/transactions")]
    assert amounts == [-1, -1, -1, 100]


def test_jobs_can_be_listed_by_status(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    kept, gone = [ordered(ada)["id"] for _ in range(3)], ordered(ada)["id"]
    ada.post(f"/api/ai-jobs/{gone}/cancel")
    assert [row["id"] for row in walk(ada, "/api/ai-jobs?status=queued")] == kept[::-1]
    assert [row["id"] for row in walk(ada, "/api/ai-jobs?status=cancelled")] == [gone]
    assert list(walk(ada, "/api/ai-jobs?status=failed")) == []
    assert len(list(walk(ada, "/api/ai-jobs"))) == 4


def test_empty_parameters_are_as_good_as_none(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    ordered(ada)
    assert len(answered(ada.get("/api/ai-jobs?status=&cursor=&limit="))["items"]) == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=-1", "limit"),
        ("limit=many", "limit"),
        ("limit=1e2", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("status=done", "status"),
        ("cursor=" + "x" * 513, "cursor"),
        ("cursor=%00", "cursor"),
    ],
)
def test_a_bad_parameter_is_refused_by_its_name(caller: MakeCaller, query: str, field: str) -> None:
    refused(caller().get(f"/api/ai-jobs?{query}"), 422, "invalid_input", field)


def forged(*place: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


NOW, ID = "2026-01-02T00:00:00+00:00", NOBODY
MARK = pages._mark("videos")


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "%F0%9F%90%88",
        "====",
        "bm90IGpzb24",
        forged(),
        forged(NOW, ID),
        forged(NOW, ID, "another list"),
        forged(NOW, ID, None),
        forged(NOW, "not an id", MARK),
        forged(NOW, 7, MARK),
        forged(7, ID, MARK),
        forged("yesterday", ID, MARK),
        forged("0001-01-01T00:00:00+14:00", ID, MARK),
        forged("9999-12-31T23:59:59-14:00", ID, MARK),
        forged({"a": 1}, [], MARK),
        "W" * 512,
        base64.urlsafe_b64encode(b"[" * 300).decode(),
        base64.urlsafe_b64encode(b"9" * 380).decode(),
    ],
)
def test_a_cursor_that_is_none_is_refused(caller: MakeCaller, cursor: str) -> None:
    answer = caller().get(f"/api/videos?cursor={cursor}")
    refused(answer, 422, "invalid_cursor", "cursor")


def test_a_cursor_is_good_for_its_own_list_only(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    for _ in range(2):
        ordered(ada)
        has_video(ada)
    for source in LISTS:
        cursor = answered(ada.get(f"{source}?limit=1"))["next_cursor"]
        for target in LISTS:
            answer = ada.get(f"{target}?cursor={cursor}")
            if source == target:
                answered(answer)
            else:
                refused(answer, 422, "invalid_cursor", "cursor")


def test_a_cursor_is_good_for_its_own_filter_only(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    for _ in range(2):
        ordered(ada)
    cursor = answered(ada.get("/api/ai-jobs?status=queued&limit=1"))["next_cursor"]
    answered(ada.get(f"/api/ai-jobs?status=queued&cursor={cursor}"))
    for other in ("", "&status=failed"):
        answer = ada.get(f"/api/ai-jobs?cursor={cursor}{other}")
        refused(answer, 422, "invalid_cursor", "cursor")


def test_a_cursor_of_somebody_else_shows_only_what_is_yours(caller: MakeCaller) -> None:
    ada, bob = caller(), caller()
    mine = str(has_video(ada))
    for _ in range(2):
        has_video(bob)
    cursor = answered(bob.get("/api/videos?limit=1"))["next_cursor"]
    listed = answered(ada.get(f"/api/videos?cursor={cursor}"))["items"]
    assert [row["id"] for row in listed] == [mine]
