"""What a stack on one machine has in its databases before its first request: the schema, the
demo catalog, a user with tokens, and an administrator with a token that works.

Repeating it changes nothing but a token that has expired.
"""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from models import migrate, users
from models.errors import Unauthorized
from models.settings import Settings
from models.users import Role
from scripts.cli_database import put_person
from scripts.state_folder import StateFolder
from tasks import catalog
from tasks.backend import Backend

ADMIN_TOKEN_DAYS = 365


def prepare(settings: Settings, state: StateFolder) -> dict[str, str]:
    """Migrate and seed; returns the secrets, with the administrator's token."""
    for _ in migrate.upgrade_all(settings):
        pass
    known = state.secrets()
    with _backend(settings) as backend:
        catalog.seed_demo(backend)
        _put(backend, known, "demo", Role.USER)
        _put(backend, known, "admin", Role.ADMIN)
        _renew_admin_token(backend, known)
    state.keep_secrets(known)
    return known


@contextmanager
def _backend(settings: Settings) -> Iterator[Backend]:
    # The stack's Redis is not there yet; nobody listens either.
    logging.getLogger("tasks.news").setLevel(logging.ERROR)
    backend = Backend.open(settings)
    try:
        yield backend
    finally:
        backend.close()


def _put(backend: Backend, known: dict[str, str], who: str, role: Role) -> None:
    """A database may come from elsewhere, with people whose passwords we do not know."""
    with backend.databases.central() as session:
        found = users.find_by_email(session, known[f"{who}_email"])
    if found and not users.password_matches(found, known[f"{who}_password"]):
        known[f"{who}_email"] = f"{who}-{secrets.token_hex(4)}@comfyfleet.dev"
    put_person(backend, known[f"{who}_email"], known[f"{who}_password"], role)


def _renew_admin_token(backend: Backend, known: dict[str, str]) -> None:
    with backend.databases.central() as session:
        admin = users.find_by_email(session, known["admin_email"])
        if admin is None:
            raise LookupError("The administrator is gone again.")
        try:
            who = users.identify(session, known["admin_token"])
            if who.user_id == admin.id:
                return
        except Unauthorized:
            pass
        known["admin_token"] = users.issue_token(session, admin, days=ADMIN_TOKEN_DAYS)
