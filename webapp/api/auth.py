"""Sign up, sign in, sign out."""

from typing import Any

from marshmallow import Schema, fields, validate

from models import users
from models.errors import Unauthorized
from models.users import User
from webapp.auth import let_anybody_in, let_users_in
from webapp.context import backend, principal
from webapp.openapi import ApiBlueprint

public = let_anybody_in(ApiBlueprint("auth", __name__, url_prefix="/api/auth", description=__doc__))
private = let_users_in(ApiBlueprint("me", __name__, url_prefix="/api", description="You."))

PASSWORD = validate.Length(8, 256)


class CredentialsSchema(Schema):
    email = fields.Email(
        required=True,
        validate=validate.Length(max=254),
        metadata={"example": "ada@example.com"},
    )
    password = fields.String(
        required=True,
        validate=PASSWORD,
        metadata={"example": "a long sentence", "format": "password"},
    )


class NewUserSchema(CredentialsSchema):
    name = fields.String(
        load_default="", validate=validate.Length(max=200), metadata={"example": "Ada"}
    )


class UserSchema(Schema):
    id = fields.UUID(required=True)
    email = fields.String(required=True)
    name = fields.String(required=True)
    tenant_id = fields.UUID(required=True)
    role = fields.String(required=True, validate=validate.OneOf([*users.Role]))


class SessionSchema(Schema):
    user = fields.Nested(UserSchema, required=True)
    token = fields.String(required=True, metadata={"description": "Send it as a bearer token."})


@public.post("/register")
@public.arguments(NewUserSchema)
@public.response(201, SessionSchema)
@public.alt_response(409, "CONFLICT")
@public.doc(security=[])
def register(new: dict[str, Any]) -> dict[str, Any]:
    """Create an account, and sign in"""
    settings, databases = backend().settings, backend().databases
    hashed = users.hash_password(new["password"])
    with databases.central() as session:
        user = users.register(
            session,
            email=new["email"],
            password_hash=hashed,
            name=new["name"],
            pool=databases.pools[0],
        )
        return _session(user, users.issue_token(session, user, days=settings.access_token_days))


@public.post("/login")
@public.arguments(CredentialsSchema)
@public.response(200, SessionSchema)
@public.alt_response(401, "UNAUTHORIZED")
@public.doc(security=[])
def login(given: dict[str, Any]) -> dict[str, Any]:
    """Sign in"""
    databases = backend().databases
    with databases.central(read_only=True) as session:
        user = users.find_by_email(session, given["email"])
    if not users.password_matches(user, given["password"]) or user is None:
        raise Unauthorized("The e-mail address or the password is wrong.")
    with databases.central() as session:
        token = users.issue_token(session, user, days=backend().settings.access_token_days)
    return _session(user, token)


def _session(user: User, token: str) -> dict[str, Any]:
    return {"user": user, "token": token}


@private.post("/auth/logout")
@private.response(204)
def logout() -> None:
    """Sign out: this token stops working"""
    with backend().databases.central() as session:
        users.revoke_token(session, principal().token_id)


@private.get("/me")
@private.response(200, UserSchema)
def me() -> User:
    """Who am I?"""
    with backend().databases.central(read_only=True) as session:
        return users.get(session, principal().user_id)
