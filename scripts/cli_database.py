"""`comfyfleet db …` and `comfyfleet seed`."""

import secrets
import sys
from typing import TYPE_CHECKING, Any

import click

from scripts.command import clear_errors, open_backend, show, with_json

if TYPE_CHECKING:
    from models.users import Role
    from tasks.backend import Backend

DEMO_TOKENS = 1000


@click.group("db")
def database() -> None:
    """The schemas of the central database and the tenant pools."""


@database.command()
@with_json
@clear_errors
def migrate(as_json: bool) -> None:
    """Bring every database to the current schema: central, then each pool.

    Safe to repeat and to run twice at once.
    """
    from models import migrate
    from models.settings import Settings

    done = []
    for state in migrate.upgrade_all(Settings.from_env()):
        done.append({"database": state.database, "revision": state.revision})
        if not as_json:
            click.echo(f"{state.database}: at {state.revision}")
    if as_json:
        show(True, done, [])


@database.command()
@with_json
@clear_errors
def status(as_json: bool) -> None:
    """Which schema each database has. Exit code 1 if one is not current."""
    from models import migrate
    from models.session import Databases
    from models.settings import Settings

    settings = Settings.from_env()
    databases = Databases(settings)
    states = migrate.states(databases, settings)
    databases.close()
    show(
        as_json,
        [vars(state) | {"is_current": state.is_current} for state in states],
        [
            f"{state.database}: {state.revision or 'no schema'}"
            + ("" if state.is_current else f", needs {state.expected}: run `comfyfleet db migrate`")
            for state in states
        ],
    )
    sys.exit(0 if all(state.is_current for state in states) else 1)


@click.command()
@click.option("--demo-email", default="demo@comfyfleet.dev", show_default=True)
@click.option("--admin-email", default="admin@comfyfleet.dev", show_default=True)
@click.option("--demo-password", help="Of a new demo user; default: drawn and printed once.")
@click.option("--admin-password", help="Of a new administrator; default: drawn and printed once.")
@with_json
@clear_errors
def seed(
    demo_email: str,
    admin_email: str,
    demo_password: str | None,
    admin_password: str | None,
    as_json: bool,
) -> None:
    """Put in the demo workflows, effects, fleet, a user with tokens and an administrator.

    Repeating it changes nothing and prints no password again.
    """
    from models.users import Role
    from tasks import catalog

    backend = open_backend()
    seeded = catalog.seed_demo(backend)
    people = [
        put_person(backend, demo_email, demo_password, Role.USER),
        put_person(backend, admin_email, admin_password, Role.ADMIN),
    ]
    backend.close()
    show(
        as_json,
        {**vars(seeded), "users": people},
        [
            f"{seeded.workflows} workflows, {seeded.effects} effects, {seeded.fleets} fleet.",
            *(_sentence(person) for person in people),
        ],
    )


def put_person(
    backend: "Backend", email: str, password: str | None, role: "Role"
) -> dict[str, Any]:
    from models import users
    from models.users import Role
    from tasks import money

    password = password or secrets.token_urlsafe(12)
    hashed = users.hash_password(password)  # slow on purpose, so with no transaction open
    with backend.databases.central() as session:
        user = users.find_by_email(session, email)
        is_new = user is None
        if user is None:
            user = users.register(
                session,
                email=email,
                password_hash=hashed,
                name=email.partition("@")[0],
                pool=backend.databases.pools[0],
                role=role,
            )
    if role == Role.USER:
        money.credit(
            backend,
            user_id=user.id,
            amount=DEMO_TOKENS,
            provider_transaction_id=f"seed:{user.id}",
            note="Demo tokens",
            actor="cli",
        )
    return {"email": email, "role": str(role), "password": password if is_new else None}


def _sentence(person: dict[str, Any]) -> str:
    known = f"password {person['password']}" if person["password"] else "was there already"
    return f"{person['role']}: {person['email']}, {known}"
