"""Every error is application/problem+json, and tells nothing of the inside."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from models.session import make_engine
from tests.webapp.calls import (
    NOBODY,
    Caller,
    MakeCaller,
    answered,
    nothing_written,
    order,
    refused,
)

#: What would tell an attacker something: our code, our folders, our SQL.
INSIDE = re.compile(
    r"Traceback|\.py\b|/tmp|site-packages|SELECT|INSERT|psycopg|sqlite|sqlalchemy|"
    + re.escape(str(Path(__file__).parents[2]))
)


def sent(caller: Caller, body: bytes | str, content_type: str = "application/json") -> Any:
    return caller.post("/api/ai-jobs", data=body, content_type=content_type)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"{'effect_id': 1}",
        b"\xff\xfe",
        b'{"effect_id": "\xff"}',
        b'{"effect_id": }',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"effect_id": ' + b"9" * 10_000 + b"}",
        b'{"effect_id": NaN}',
    ],
    ids=["open", "python", "utf-16", "latin-1", "hole", "lists", "objects", "digits", "NaN"],
)
def test_a_body_that_is_no_json_is_a_bad_request(plain_caller: MakeCaller, body: bytes) -> None:
    refused(sent(plain_caller(), body), 400, "bad_request")


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"7", b"null", b"true"])
def test_a_body_that_is_no_object_is_refused(plain_caller: MakeCaller, body: bytes) -> None:
    refused(sent(plain_caller(), body), 422, "invalid_input")


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
def test_a_body_of_another_type_is_refused(plain_caller: MakeCaller, content_type: str) -> None:
    body = b'{"effect_id": "colour-card", "idempotency_key": "k"}'
    refused(sent(plain_caller(tokens=9), body, content_type), 415, "unsupported_media_type")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/x+json"])
def test_json_may_be_called_by_its_other_names(plain_caller: MakeCaller, content_type: str) -> None:
    body = b'{"effect_id": "colour-card", "idempotency_key": "k"}'
    answered(sent(plain_caller(tokens=9), body, content_type), 201)


def test_no_body_at_all_names_what_is_missing(plain_caller: MakeCaller) -> None:
    problem = refused(plain_caller().post("/api/ai-jobs"), 422, "invalid_input", "effect_id")
    assert problem["errors"] == {"effect_id": ["Missing data for required field."]}


def test_an_unknown_field_is_named(plain_caller: MakeCaller) -> None:
    ada = plain_caller(tokens=9)
    problem = refused(order(ada, colour="red"), 422, "invalid_input", "colour")
    assert problem["errors"] == {"colour": ["Unknown field."]}
    assert problem["detail"] == "colour: Unknown field."


def test_every_bad_field_is_named_at_once(plain_caller: MakeCaller) -> None:
    problem = refused(order(plain_caller(), "", inputs=7, colour="red"), 422, "invalid_input")
    assert set(problem["errors"]) == {"effect_id", "inputs", "colour"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"effect_id": "a\x00b"}, "effect_id"),
        ({"effect_id": "\ud800"}, "effect_id"),
        ({"inputs": {"width": "a\x00b"}}, "inputs.width"),
        ({"inputs": {"a": [{"b": "\udfff"}]}}, "inputs.a.b"),
        ({"inputs": {"a\x00b": 1}}, "inputs"),
        ({"col\x00our": 1}, "body"),
        ({"idempotency_key": "\udcff"}, "idempotency_key"),
    ],
)
def test_text_that_no_database_stores_is_refused_in_a_body(
    caller: MakeCaller, body: dict[str, Any], field: str
) -> None:
    ada = caller(tokens=9)
    whole = {"effect_id": "colour-card", "idempotency_key": "k"} | body
    with nothing_written(ada.backend):
        refused(sent(ada, json.dumps(whole)), 422, "invalid_input", field)


@pytest.mark.parametrize("value", ["%00", "a%00b", "%ED%A0%80", "%FF", "%u0000"])
def test_text_that_no_database_stores_is_refused_in_an_address(
    caller: MakeCaller, value: str
) -> None:
    ada = caller()
    for address in (
        f"/api/effects/{value}",
        f"/api/videos/{value}",
        f"/docs/{value}",
        f"/static/{value}",
        f"/{value}",
    ):
        refused(ada.get(address), 404, "not_found")
    assert ada.get(f"/storage/{value}").status_code in (403, 404)
    refused(ada.get(f"/storage/x.png?signature={value}&{value}=1"), 403, "forbidden")
    assert ada.get(f"/api/videos?cursor={value}").status_code == 422
    assert ada.get(f"/api/ai-jobs?status={value}").status_code == 422


def test_emoji_and_other_people_s_letters_are_stored(caller: MakeCaller) -> None:
    ada = caller(tokens=9)
    key = "🐈 ключ 鍵 \u202e"
    job = answered(order(ada, idempotency_key=key), 201)
    assert answered(order(ada, idempotency_key=key), 200)["id"] == job["id"]


def test_a_body_that_is_too_large_is_refused(plain_caller: MakeCaller) -> None:
    ada = plain_caller()
    body = json.dumps({"effect_id": "x" * ada.backend.settings.max_body_bytes})
    refused(sent(ada, body), 413, "body_too_large")


def test_an_unknown_address_is_not_found(plain_client: FlaskClient) -> None:
    for address in ("/", "/api", "/api/nothing", "/api/videos/x/y", "/..%2f..%2fetc/passwd"):
        refused(plain_client.get(address), 404, "not_found")


def test_a_method_that_an_address_does_not_take_is_named(plain_caller: MakeCaller) -> None:
    answer = plain_caller().call("PATCH", f"/api/videos/{NOBODY}")
    refused(answer, 405, "method_not_allowed")
    assert {"GET", "DELETE"} <= set(answer.headers["Allow"].split(", "))


def test_an_address_with_a_slash_at_its_end_is_the_same(plain_caller: MakeCaller) -> None:
    answered(plain_caller().get("/api/effects/"))


def test_a_request_keeps_the_id_its_caller_gave_it(plain_client: FlaskClient) -> None:
    answer = plain_client.get("/nothing", headers={"X-Request-ID": "trace-7.a_b"})
    assert answer.headers["X-Request-ID"] == "trace-7.a_b"
    assert refused(answer, 404, "not_found")["request_id"] == "trace-7.a_b"


@pytest.mark.parametrize("given", ["", "x" * 65, "two words", "<b>", "a\tb"])
def test_a_request_id_that_is_none_is_replaced(plain_client: FlaskClient, given: str) -> None:
    answer = plain_client.get("/healthz", headers={"X-Request-ID": given})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["X-Request-ID"])


def test_an_error_that_nobody_expected_tells_nothing(
    plain_app_with: Any, plain_caller: MakeCaller, caplog: pytest.LogCaptureFixture
) -> None:
    app = plain_app_with()
    app.add_url_rule("/boom", view_func=lambda: 1 / 0)
    problem = refused(app.test_client().get("/boom"), 500, "internal_error")
    assert "request id" in problem["detail"]
    assert "division" not in str(problem)
    assert "ZeroDivisionError" in caplog.text


def test_a_table_that_is_gone_tells_nothing_of_the_sql(
    caller: MakeCaller, caplog: pytest.LogCaptureFixture
) -> None:
    ada = caller()
    rename(ada, "videos", "videos_away")
    answer = ada.get("/api/videos")
    rename(ada, "videos_away", "videos")
    assert answer.status_code in (500, 503)  # SQLite does not tell this from a file that is gone
    refused(answer, answer.status_code, answer.get_json()["code"])
    assert not INSIDE.search(answer.get_data(as_text=True))
    assert "SELECT" in caplog.text
    answered(ada.get("/api/videos"))


def rename(caller: Caller, old: str, new: str) -> None:
    engine = make_engine(caller.backend.settings.pools["main"], as_owner=True)
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))
    engine.dispose()


def test_refusals_tell_nothing_of_the_inside(plain_caller: MakeCaller) -> None:
    ada = plain_caller(tokens=1)
    answers = [
        ada.get("/nothing"),
        ada.get(f"/api/videos/{NOBODY}"),
        ada.get("/api/videos?cursor=x"),
        ada.get("/docs/nothing.js"),
        ada.get("/storage/nothing.png"),
        ada.post("/api/videos", json={"original_file_id": NOBODY}),
        ada.post(f"/api/admin/jobs/{NOBODY}/refund", json={"note": "x"}),
        ada.call("DELETE", "/api/me"),
        order(ada, "image-invert"),
        order(ada, "nothing"),
        sent(ada, b"{"),
    ]
    for answer in answers:
        body = answer.get_data(as_text=True)
        refused(answer, answer.status_code, answer.get_json()["code"])
        assert answer.status_code < 500
        assert not INSIDE.search(body), body
