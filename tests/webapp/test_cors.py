"""Which web pages may call us: those of the allow-list, and no others."""

from collections.abc import Callable

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests.webapp.calls import Caller, MakeCaller, announce, answered, put, refused

AppWith = Callable[..., Flask]
STUDIO, OTHER = "https://studio.example.com", "https://evil.example.com"


@pytest.fixture
def app(plain_app_with: AppWith) -> Flask:
    return plain_app_with(cors_origins=f"{STUDIO} https://second.example.com")


def preflight(app: Flask, origin: str, address: str = "/api/ai-jobs") -> TestResponse:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
    }
    return app.test_client().options(address, headers=headers)


def test_a_page_of_the_list_may_ask_before_it_calls(app: Flask) -> None:
    answer = preflight(app, STUDIO)
    assert (answer.status_code, answer.data) == (204, b"")
    assert answer.headers["Access-Control-Allow-Origin"] == STUDIO
    assert {"GET", "POST", "DELETE"} <= set(
        answer.headers["Access-Control-Allow-Methods"].split(", ")
    )
    allowed = answer.headers["Access-Control-Allow-Headers"].lower().split(", ")
    assert {"authorization", "content-type", "idempotency-key"} <= set(allowed)
    assert int(answer.headers["Access-Control-Max-Age"]) > 0
    assert "Origin" in answer.headers["Vary"]


@pytest.mark.parametrize(
    "origin", [OTHER, "null", "https://studio.example.com.evil.com", STUDIO.upper(), ""]
)
def test_any_other_page_is_not_let_in(app: Flask, origin: str) -> None:
    answers = [
        preflight(app, origin),
        app.test_client().get("/healthz", headers={"Origin": origin}),
    ]
    for answer in answers:
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert "Origin" in answer.headers["Vary"]


def test_a_page_of_the_list_may_read_answers_and_refusals(
    app: Flask, plain_caller: MakeCaller
) -> None:
    ada = Caller(app, plain_caller().person)
    good = ada.get("/api/me", headers={"Origin": STUDIO})
    bad = ada.get("/api/nothing", headers={"Origin": STUDIO})
    answered(good)
    refused(bad, 404, "not_found")
    for answer in (good, bad):
        assert answer.headers["Access-Control-Allow-Origin"] == STUDIO
        exposed = answer.headers["Access-Control-Expose-Headers"]
        assert {"Retry-After", "X-Request-ID", "ETag"} <= set(exposed.split(", "))


def test_a_page_may_send_files_to_signed_addresses(app: Flask, plain_caller: MakeCaller) -> None:
    ada = Caller(app, plain_caller().person)
    target, body = announce(ada)["upload"], b"x"
    assert preflight(app, STUDIO, target["url"]).status_code == 204
    answer = put(ada, target, body, Origin=STUDIO)
    assert answer.headers["Access-Control-Allow-Origin"] == STUDIO
    assert "ETag" in answer.headers["Access-Control-Expose-Headers"]


def test_cookies_are_never_asked_for(app: Flask) -> None:
    answer = preflight(app, STUDIO)
    assert "Access-Control-Allow-Credentials" not in answer.headers


def test_without_a_list_no_page_may_call(plain_app: Flask) -> None:
    answer = preflight(plain_app, STUDIO)
    assert not [name for name, _ in answer.headers if name.startswith("Access-Control-Allow")]


def test_options_without_a_page_names_the_methods(app: Flask) -> None:
    answer = app.test_client().options("/healthz")
    assert (answer.status_code, "GET" in answer.headers["Allow"]) == (200, True)
