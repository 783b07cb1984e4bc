"""How often somebody may ask, counted in the real Redis by all processes together."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask
from redis import Redis

from models.settings import BadSetting
from tests.webapp.calls import Caller, MakeCaller, announce, answered, order, refused

AppWith = Callable[..., Flask]
LIMITS = (
    "auth=3/minute submit=2/minute upload=2/minute api=4/minute register=9/minute worker=9/minute"
)


@pytest.fixture(autouse=True)
def nobody_counted_yet(module_redis_url: str) -> None:
    with Redis.from_url(module_redis_url) as redis:
        redis.flushdb()


def limited(answer: Any) -> int:
    problem = refused(answer, 429, "rate_limited")
    wait: int = problem["retry_after_seconds"]
    assert answer.headers["Retry-After"] == str(wait)
    assert 1 <= wait <= 60
    assert f"in {wait} seconds" in problem["detail"]
    return wait


def sign_in(app: Flask, address: str = "1.2.3.4", **headers: str) -> Any:
    """With a password that is too short to be looked at, but counted."""
    body = {"email": "ada@example.com", "password": "short"}
    return app.test_client().post(
        "/api/auth/login",
        json=body,
        headers=headers,
        environ_overrides={"REMOTE_ADDR": address},
    )


def test_two_processes_count_together(plain_app_with: AppWith, plain_caller: MakeCaller) -> None:
    person = plain_caller().person
    one, other = (Caller(plain_app_with(rate_limits=LIMITS), person) for _ in range(2))
    for ada in (one, other, one, other):
        answered(ada.get("/api/me"))
    limited(one.get("/api/me"))
    limited(other.get("/api/wallet"))


def test_each_token_has_its_own_count(plain_app_with: AppWith, plain_caller: MakeCaller) -> None:
    app = plain_app_with(rate_limits=LIMITS)
    ada, bob = (Caller(app, plain_caller().person) for _ in range(2))
    for _ in range(4):
        answered(ada.get("/api/me"))
    limited(ada.get("/api/me"))
    answered(bob.get("/api/me"))  # from the same address


def test_orders_and_uploads_are_counted_apart(
    plain_app_with: AppWith, plain_caller: MakeCaller
) -> None:
    ada = Caller(plain_app_with(rate_limits=LIMITS), plain_caller(tokens=9).person)
    for _ in range(2):
        answered(order(ada), 201)
        announce(ada)
    limited(order(ada))
    limited(ada.post("/api/videos/uploads", json={}))
    limited(ada.post("/api/videos", json={}))
    for _ in range(4):
        answered(ada.get("/api/me"))


def test_a_repeated_order_is_counted_too(plain_app_with: AppWith, plain_caller: MakeCaller) -> None:
    ada = Caller(plain_app_with(rate_limits=LIMITS), plain_caller(tokens=9).person)
    key = uuid4().hex
    answered(order(ada, idempotency_key=key), 201)
    answered(order(ada, idempotency_key=key), 200)
    limited(order(ada, idempotency_key=key))


def test_what_is_refused_is_not_carried_out(
    plain_app_with: AppWith, plain_caller: MakeCaller
) -> None:
    ada = Caller(plain_app_with(rate_limits=LIMITS), plain_caller(tokens=9).person)
    for _ in range(4):
        order(ada)
    assert ada.wallet() == {"balance": 7, "reserved": 2}


def test_signing_in_is_counted_by_address(plain_app_with: AppWith) -> None:
    app = plain_app_with(rate_limits=LIMITS)
    for _ in range(3):
        refused(sign_in(app), 422, "invalid_input")
    limited(sign_in(app))
    refused(sign_in(app, "5.6.7.8"), 422, "invalid_input")


def test_guessing_tokens_is_counted_by_address(
    plain_app_with: AppWith, plain_caller: MakeCaller
) -> None:
    app = plain_app_with(rate_limits=LIMITS)
    ada = Caller(app, plain_caller().person)

    def guess() -> Any:
        return app.test_client().get("/api/me", headers={"Authorization": f"Bearer {uuid4()}"})

    for _ in range(3):
        refused(guess(), 401, "unauthorized")
    limited(guess())
    answered(ada.get("/api/me"))  # whoever has a token is not locked out by a guesser


@pytest.mark.parametrize(
    ("proxies", "header", "together"),
    [
        (0, "9.9.9.9", True),  # nobody asked us to believe it
        (1, "9.9.9.9", False),
        (1, "9.9.9.9, 1.2.3.4", True),  # the last one is our proxy's word, the first anybody's
        (2, "9.9.9.9, 7.7.7.7", False),
    ],
)
def test_a_forwarded_address_counts_only_behind_proxies_of_ours(
    plain_app_with: AppWith, proxies: int, header: str, together: bool
) -> None:
    app = plain_app_with(rate_limits=LIMITS, trusted_proxies=proxies)
    for _ in range(3):
        refused(sign_in(app), 422, "invalid_input")
    forwarded = sign_in(app, "1.2.3.4", **{"X-Forwarded-For": header})
    assert (forwarded.status_code == 429) is together


@pytest.mark.parametrize(
    "limits",
    [
        "auth=many",
        "auth=20/minute submit=600/minute upload=120/minute",
        "api",
        "",
        "auth=1/year-ish submit=1/minute upload=1/minute api=1/minute",
    ],
)
def test_limits_that_are_none_stop_the_start(plain_app_with: AppWith, limits: str) -> None:
    with pytest.raises(BadSetting, match="COMFYFLEET_RATE_LIMITS"):
        plain_app_with(rate_limits=limits)
