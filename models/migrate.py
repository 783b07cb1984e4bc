"""Bring every database to the schema this code expects: central, then each pool.

Safe to repeat and to run twice at once: each database is migrated under a lock, in one
transaction. The application calls `require_current` when it starts and refuses to run on
any other schema than its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DBAPIError

from models.errors import DATABASE_AWAY
from models.session import APP_ROLE, EVERY_TENANT, Databases, make_engine
from models.settings import Settings

MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK = 0x636F6D66  # any number will do, as long as every migration uses the same


class SchemaNotCurrent(RuntimeError):
    """The database and this code do not fit; the message says what to do."""


@dataclass(frozen=True)
class SchemaState:
    database: str  # "central" or "pool:NAME"
    revision: str | None
    expected: str

    @property
    def is_current(self) -> bool:
        return self.revision == self.expected


def upgrade_all(settings: Settings) -> Iterator[SchemaState]:
    """Migrate one database after the other, telling about each when it is done."""
    for database, url in targets(settings).items():
        upgrade(database, url, app_url=_app_urls(settings)[database])
        yield SchemaState(database, expected(database), expected(database))


def upgrade(database: str, url: str, *, app_url: str | None = None) -> None:
    with _locked_connection(url) as connection:
        if connection.dialect.name == "postgresql":
            _make_app_role(connection, app_url or url)
        config = config_of(database)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def targets(settings: Settings) -> dict[str, str]:
    """Where to migrate: the owner's URL if one is given, else the application's."""
    owners = settings.owners
    return {
        database: owners.get(database.removeprefix("pool:"), url)
        for database, url in _app_urls(settings).items()
    }


def _app_urls(settings: Settings) -> dict[str, str]:
    return {"central": settings.central_url} | {
        f"pool:{name}": url for name, url in settings.pools.items()
    }


@contextmanager
def _locked_connection(url: str) -> Iterator[Connection]:
    """One transaction, and nobody else migrates this database meanwhile."""
    engine = make_engine(url, as_owner=True)
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
                connection.execute(
                    text("SELECT set_config('app.tenant_id', :every, true)"),
                    {"every": EVERY_TENANT},
                )
            yield connection
    finally:
        engine.dispose()


def _make_app_role(connection: Connection, app_url: str) -> None:
    """The role the application takes on. Roles belong to the server, not to a database."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK + 1})
    known = connection.scalar(text("SELECT 1 FROM pg_roles WHERE rolname = :r"), {"r": APP_ROLE})
    if not known:
        _create_role(connection)
    login = make_url(app_url).username or connection.scalar(text("SELECT current_user"))
    quoted = connection.dialect.identifier_preparer.quote(str(login))
    connection.execute(text(f"GRANT {APP_ROLE} TO {quoted}"))


def _create_role(connection: Connection) -> None:
    try:
        with connection.begin_nested():
            connection.execute(text(f"CREATE ROLE {APP_ROLE} NOLOGIN"))
    except DBAPIError:  # made by a migration of another database at this very moment
        known = text("SELECT 1 FROM pg_roles WHERE rolname = :r")
        if not connection.scalar(known, {"r": APP_ROLE}):
            raise


def states(databases: Databases, settings: Settings) -> list[SchemaState]:
    return [
        SchemaState(database, _revision(databases, database), expected(database))
        for database in _app_urls(settings)
    ]


def require_current(
    databases: Databases, settings: Settings, *, pools_may_be_away: bool = False
) -> None:
    """`pools_may_be_away`: for those who work on pool after pool, and go on without one."""
    asked = states_that_answer if pools_may_be_away else states
    stale = [state for state in asked(databases, settings) if not state.is_current]
    if stale:
        listed = "; ".join(
            f"{state.database} is at {state.revision or 'nothing'}, this code needs "
            f"{state.expected}"
            for state in stale
        )
        raise SchemaNotCurrent(f"{listed}. Run `comfyfleet db migrate`.")


def states_that_answer(databases: Databases, settings: Settings) -> list[SchemaState]:
    """Of central, and of the pools that are there."""
    found = []
    for database in _app_urls(settings):
        try:
            found.append(SchemaState(database, _revision(databases, database), expected(database)))
        except (*DATABASE_AWAY, OSError):  # SQLite: its folder may be away
            if database == "central":
                raise
    return found


def _revision(databases: Databases, database: str) -> str | None:
    engine = databases.engine(database)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except DBAPIError as error:
        if "comfyfleet_app" in str(error.orig):  # the very first migration makes the role
            return None
        raise


def expected(database: str) -> str:
    head = ScriptDirectory.from_config(config_of(database)).get_current_head()
    if head is None:
        raise LookupError(f"{database} has no migrations.")
    return head


def config_of(database: str) -> Config:
    config = Config()
    history = "central" if database == "central" else "tenant"
    config.set_main_option("script_location", str(MIGRATIONS / history))
    config.set_main_option("path_separator", "os")
    return config
