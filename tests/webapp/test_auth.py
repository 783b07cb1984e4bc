"""Sign up, sign in, sign out; and what the database keeps of it."""

import hashlib
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import select, update

from models.base import utcnow
from models.users import AccessToken, User
from tasks.backend import Backend
from tests.webapp.calls import Json, MakeCaller, answered, nothing_written, refused

PASSWORD = "correct horse battery"


def new_email() -> str:
    return f"{uuid4().hex}@example.com"


def registered(client: FlaskClient, **given: Any) -> Json:
    body = {"email": new_email(), "password": PASSWORD} | given
    return answered(client.post("/api/auth/register", json=body), 201)


@pytest.fixture(scope="module")
def account(app: Flask) -> Json:
    """Somebody who is registered; hashing a password takes its time, so only once."""
    return registered(app.test_client(), name="Ada")


def sign_in(client: FlaskClient, email: str, password: str = PASSWORD) -> Any:
    return client.post("/api/auth/login", json={"email": email, "password": password})


def me(client: FlaskClient, token: str) -> Any:
    return client.get("/api/me", headers={"Authorization": f"Bearer {token}"})


def test_a_new_account_is_signed_in_at_once(client: FlaskClient) -> None:
    email = new_email()
    made = registered(client, email=email, name="Ada")
    assert set(made) == {"user", "token"}
    assert set(made["user"]) == {"id", "email", "name", "tenant_id", "role"}
    assert (made["user"]["email"], made["user"]["name"]) == (email, "Ada")
    assert made["user"]["role"] == "user"
    assert UUID(made["user"]["id"]) != UUID(made["user"]["tenant_id"])
    assert answered(me(client, made["token"])) == made["user"]


def test_a_name_is_not_needed(client: FlaskClient) -> None:
    assert registered(client)["user"]["name"] == ""


def test_every_account_has_a_tenant_of_its_own(client: FlaskClient, account: Json) -> None:
    assert registered(client)["user"]["tenant_id"] != account["user"]["tenant_id"]


def test_nobody_registers_as_an_administrator(client: FlaskClient) -> None:
    body = {"email": new_email(), "password": PASSWORD, "role": "admin"}
    refused(client.post("/api/auth/register", json=body), 422, "invalid_input", "role")


def test_signing_in_gives_the_same_user_and_another_token(
    client: FlaskClient, account: Json
) -> None:
    signed_in = answered(sign_in(client, account["user"]["email"]))
    assert signed_in["user"] == account["user"]
    assert signed_in["token"] != account["token"]
    for token in (account["token"], signed_in["token"]):
        answered(me(client, token))


def test_an_address_is_the_same_in_capitals(
    client: FlaskClient, backend: Backend, account: Json
) -> None:
    shouted = account["user"]["email"].upper()
    assert answered(sign_in(client, shouted))["user"] == account["user"]
    with nothing_written(backend):
        again = client.post("/api/auth/register", json={"email": shouted, "password": PASSWORD})
        refused(again, 409, "email_taken")


@pytest.mark.parametrize("known", [True, False])
def test_a_wrong_password_and_an_unknown_address_look_alike(
    client: FlaskClient, backend: Backend, account: Json, known: bool
) -> None:
    email = account["user"]["email"] if known else new_email()
    with nothing_written(backend):
        problem = refused(sign_in(client, email, "not the password"), 401, "unauthorized")
    assert problem["detail"] == "The e-mail address or the password is wrong."


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("email", None),
        ("email", "no address"),
        ("email", "a" * 250 + "@example.com"),
        ("email", 7),
        ("password", None),
        ("password", "7 chars"),
        ("password", "x" * 257),
        ("password", ["x" * 20]),
        ("name", "x" * 201),
        ("name", {}),
        ("favourite", "blue"),
    ],
)
def test_a_bad_account_is_refused_by_its_field(
    client: FlaskClient, backend: Backend, field: str, value: Any
) -> None:
    body = {"email": new_email(), "password": PASSWORD} | {field: value}
    with nothing_written(backend):
        refused(client.post("/api/auth/register", json=body), 422, "invalid_input", field)


def test_passwords_are_kept_as_argon2(backend: Backend, account: Json) -> None:
    with backend.databases.central() as session:
        kept = session.get_one(User, UUID(account["user"]["id"])).password_hash
    assert kept.startswith("$argon2id$")
    assert PASSWORD not in kept


def test_tokens_are_kept_hashed(backend: Backend, account: Json) -> None:
    token = account["token"]
    with backend.databases.central() as session:
        hashed = hashlib.sha256(token.encode()).hexdigest()
        kept = session.scalars(select(AccessToken).where(AccessToken.token_hash == hashed)).one()
        everything = [repr(row) for row in session.execute(select(AccessToken.__table__))]
    assert kept.user_id == UUID(account["user"]["id"])
    assert not any(token in row for row in everything)
    assert len(token) >= 40
    assert timedelta(days=29) < kept.expires_at - utcnow() < timedelta(days=31)


def test_signing_out_ends_this_token_and_no_other(client: FlaskClient, account: Json) -> None:
    second = answered(sign_in(client, account["user"]["email"]))["token"]
    gone = client.post("/api/auth/logout", headers={"Authorization": f"Bearer {second}"})
    assert (gone.status_code, gone.data) == (204, b"")
    refused(me(client, second), 401, "unauthorized")
    answered(me(client, account["token"]))


def test_an_expired_sign_in_is_refused(caller: MakeCaller) -> None:
    ada = caller()
    with ada.backend.databases.central() as session:
        session.execute(
            update(AccessToken)
            .where(AccessToken.user_id == ada.person.user_id)
            .values(expires_at=utcnow())
        )
    problem = refused(ada.get("/api/me"), 401, "unauthorized")
    assert problem["detail"] == "The sign-in has expired. Sign in again."


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer  ", "Basic YTpi", "Bearer nobodys-token", "Bearer \xe9"]
)
def test_without_a_good_token_nobody_gets_in(client: FlaskClient, header: str | None) -> None:
    answer = client.get("/api/me", headers={"Authorization": header} if header is not None else {})
    refused(answer, 401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_the_scheme_may_be_written_in_small_letters(caller: MakeCaller) -> None:
    ada = caller()
    answered(ada.get("/api/me", headers={"Authorization": f"bearer {ada.person.token}"}))
