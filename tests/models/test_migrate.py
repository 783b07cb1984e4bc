"""Migrations: repeatable, one at a time, and nothing runs on an old schema."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psycopg2
import pytest
from alembic import command
from sqlalchemy import make_url, text

from models import migrate, workflows
from models.session import Databases, make_engine
from models.settings import Settings
from tasks.backend import Backend
from tests.fixtures import sqlite_settings
from webapp import create_app


@pytest.fixture
def fresh(postgres_settings: Settings, place: int) -> Settings:
    """Two empty databases on the real server."""
    url = make_url(postgres_settings.central_url)
    names = [f"fresh_{part}_{place}" for part in ("central", "pool")]
    connection = psycopg2.connect(
        host=url.host, port=url.port, user=url.username, password=url.password, dbname="postgres"
    )
    connection.autocommit = True
    with connection.cursor() as cursor:
        for name in names:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            cursor.execute(f'CREATE DATABASE "{name}"')
    connection.close()
    central, pool = (url.set(database=n).render_as_string(hide_password=False) for n in names)
    return Settings(central_url=central, pool_urls=f"main={pool}")


def test_the_schema_is_what_the_tables_say(postgres: Backend) -> None:
    """`alembic check`: whoever changes a table and forgets the migration fails here."""
    for database, url in migrate.targets(postgres.settings).items():
        engine = make_engine(url, as_owner=True)
        with engine.begin() as connection:
            config = migrate.config_of(database)
            config.attributes["connection"] = connection
            command.check(config)
        engine.dispose()
    assert [s.is_current for s in migrate.states(postgres.databases, postgres.settings)] == [
        True
    ] * 3


def test_migrating_again_changes_nothing(fresh: Settings) -> None:
    first = list(migrate.upgrade_all(fresh))
    assert list(migrate.upgrade_all(fresh)) == first
    assert [state.database for state in first] == ["central", "pool:main"]


def migrate_in_processes(settings: Settings, count: int) -> list[tuple[int, str]]:
    """`comfyfleet db migrate`, several at the same moment."""
    given = {f"COMFYFLEET_{name.upper()}": str(value) for name, value in vars(settings).items()}
    command_line = [sys.executable, "-m", "scripts.cli", "db", "migrate"]
    processes = [
        subprocess.Popen(
            command_line, env=os.environ | given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(count)
    ]
    ended = [(process.communicate(timeout=60)[0], process.returncode) for process in processes]
    return [(code, output.decode()) for output, code in ended]


def test_migrations_at_once_take_turns(fresh: Settings) -> None:
    done = migrate_in_processes(fresh, 3)
    assert [code for code, _ in done] == [0, 0, 0], done


def test_migrations_at_once_take_turns_on_sqlite(tmp_path: Path) -> None:
    done = migrate_in_processes(sqlite_settings(tmp_path), 3)
    assert [code for code, _ in done] == [0, 0, 0], done


def test_a_migration_that_fails_leaves_nothing_behind(fresh: Settings) -> None:
    engine = make_engine(fresh.central_url, as_owner=True)
    with engine.begin() as connection:  # in the way of the last table
        connection.execute(text("CREATE TABLE dead_letters (id int)"))
    with pytest.raises(Exception, match="dead_letters"):
        list(migrate.upgrade_all(fresh))
    with engine.begin() as connection:
        tables = connection.scalars(
            text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        ).all()
        connection.execute(text("DROP TABLE dead_letters"))
    engine.dispose()
    assert tables == ["dead_letters"]
    list(migrate.upgrade_all(fresh))


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_the_version_in_use_is_kept_when_versions_come(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    on_sqlite = kind == "sqlite"
    settings = sqlite_settings(tmp_path) if on_sqlite else request.getfixturevalue("fresh")
    engine = make_engine(settings.central_url, as_owner=True)
    config = migrate.config_of("central")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        columns = "id, slug, name, kind, version, content_hash, properties, is_active"
        connection.execute(
            text(
                f"INSERT INTO workflows ({columns}, created_at, updated_at) VALUES "
                "('11111111111111111111111111111111', 'card', 'Card', 'image', 4, :hash, '[]', "
                "true, '2026-01-01', '2026-01-02')"
            ),
            {"hash": "a" * 64},
        )
    engine.dispose()
    list(migrate.upgrade_all(settings))
    databases = Databases(settings)
    with databases.central(read_only=True) as session:
        workflow = workflows.get(session, "card")
        kept = session.scalars(workflows.versions(workflow)).one()
        assert (kept.version, kept.content_hash) == (4, workflow.content_hash)
    databases.close()


@pytest.mark.parametrize("revision", [None, "0000"])
def test_the_application_refuses_another_schema(sqlite: Backend, revision: str | None) -> None:
    with sqlite.databases.engine("pool:second").begin() as connection:
        if revision is None:
            connection.execute(text("DROP TABLE alembic_version"))
        else:
            connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    with pytest.raises(migrate.SchemaNotCurrent) as refused:
        create_app(sqlite.settings)
    assert f"pool:second is at {revision or 'nothing'}" in str(refused.value)
    assert "comfyfleet db migrate" in str(refused.value)


def test_an_owner_can_migrate_for_an_application_that_may_not(fresh: Settings) -> None:
    """Two logins: the schema's owner, and one that only takes on the application's role."""
    owner = make_engine(fresh.central_url, as_owner=True)
    with owner.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS app_login"))
        connection.execute(text("CREATE ROLE app_login LOGIN PASSWORD 'secret'"))
    owner.dispose()

    def as_app(url: str) -> str:
        login = make_url(url).set(username="app_login", password="secret")
        return login.render_as_string(hide_password=False)

    settings = replace(
        fresh,
        central_url=as_app(fresh.central_url),
        pool_urls=f"main={as_app(fresh.pools['main'])}",
        owner_urls=f"central={fresh.central_url} main={fresh.pools['main']}",
    )
    list(migrate.upgrade_all(settings))
    databases = Databases(settings)
    migrate.require_current(databases, settings)
    databases.close()
