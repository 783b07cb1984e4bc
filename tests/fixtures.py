"""A whole backend for each test, on PostgreSQL and on SQLite.

`backend` runs a test twice, once on each database; `postgres` is for what only the real
server can show: races, row-level security. Each test starts with empty tables.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID, uuid4

import psycopg2
import pytest
from flask import Flask
from flask.testing import FlaskClient
from redis import Redis
from sqlalchemy import make_url, text

from models import ledger, migrate, users
from models.session import make_engine
from models.settings import Settings
from models.users import Role
from tasks import catalog
from tasks.backend import Backend
from webapp import create_app

SECRET = "a secret of the tests, forty characters."
FLEET_SECRET = "the-secret-of-the-fleets-of-the-tests"
POOLS = ("main", "second")


@pytest.fixture(scope="session")
def place(worker_id: str) -> int:
    """A number of its own for each xdist worker: its databases, its Redis database."""
    return 0 if worker_id == "master" else int(worker_id.removeprefix("gw")) + 1


@pytest.fixture(scope="session")
def postgres_settings(place: int) -> Settings:
    """Databases of this xdist worker, migrated once."""
    admin = make_url(os.environ["TEST_DATABASE_URL"])
    names = {part: f"test_{part}_{place}" for part in ("central", *POOLS)}
    connection = psycopg2.connect(
        host=admin.host,
        port=admin.port,
        user=admin.username,
        password=admin.password,
        dbname=admin.database,
    )
    connection.autocommit = True
    with connection.cursor() as cursor:
        for name in names.values():
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            cursor.execute(f'CREATE DATABASE "{name}"')
    connection.close()
    urls = {
        part: admin.set(database=name).render_as_string(hide_password=False)
        for part, name in names.items()
    }
    settings = Settings(
        central_url=urls["central"],
        pool_urls=" ".join(f"{pool}={urls[pool]}" for pool in POOLS),
    )
    list(migrate.upgrade_all(settings))
    return settings


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sqlite-template")
    list(migrate.upgrade_all(sqlite_settings(folder)))
    return folder


def sqlite_settings(folder: Path) -> Settings:
    return Settings(
        central_url=f"sqlite:///{folder}/central.db",
        pool_urls=" ".join(f"{pool}=sqlite:///{folder}/{pool}.db" for pool in POOLS),
    )


def emptied(settings: Settings) -> None:
    for url in migrate.targets(settings).values():
        engine = make_engine(url, as_owner=True)
        with engine.begin() as connection:
            tables = connection.scalars(
                text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            ).all()
            named = ", ".join(table for table in tables if table != "alembic_version")
            connection.execute(text(f"TRUNCATE {named} CASCADE"))
        engine.dispose()


@pytest.fixture
def redis_url(place: int) -> str:
    url = os.environ["TEST_REDIS_URL"].rsplit("/", 1)[0] + f"/{place}"
    with Redis.from_url(url) as redis:
        redis.flushdb()
    return url


def for_tests(settings: Settings, folder: Path, redis_url: str) -> Settings:
    return replace(
        settings,
        redis_url=redis_url,
        storage_url=f"file://{folder}/objects",
        public_url="http://localhost",
        secret_key=SECRET,
        catalog_seconds=0,
        metrics_seconds=0,
        rate_limits="auth=100000/minute submit=100000/minute upload=100000/minute "
        "api=100000/minute register=100000/minute worker=100000/minute",
        fleet_secrets=FLEET_SECRET,
    )


@pytest.fixture
def postgres(postgres_settings: Settings, tmp_path: Path, redis_url: str) -> Iterator[Backend]:
    """A backend on the real PostgreSQL."""
    emptied(postgres_settings)
    yield from opened(for_tests(postgres_settings, tmp_path, redis_url))


@pytest.fixture
def sqlite(sqlite_template: Path, tmp_path: Path, redis_url: str) -> Iterator[Backend]:
    """A backend on SQLite files of its own."""
    shutil.copytree(sqlite_template, tmp_path / "databases")
    yield from opened(for_tests(sqlite_settings(tmp_path / "databases"), tmp_path, redis_url))


def opened(settings: Settings) -> Iterator[Backend]:
    backend = Backend.open(settings)
    yield backend
    backend.close()


@pytest.fixture(params=["postgres", "sqlite"])
def backend(request: pytest.FixtureRequest) -> Backend:
    made: Backend = request.getfixturevalue(request.param)
    return made


@dataclass(frozen=True)
class Person:
    user_id: UUID
    tenant_id: UUID
    token: str
    email: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


MakePerson = Callable[..., Person]


def make_person(
    backend: Backend, *, tokens: int = 0, role: Role = Role.USER, pool: str = "main"
) -> Person:
    email = f"{uuid4().hex}@example.com"
    with backend.databases.central() as session:
        user = users.register(
            session, email=email, password_hash="unused", name="Test", pool=pool, role=role
        )
        token = users.issue_token(session, user, days=1)
    if tokens:
        with backend.databases.tenant(user.tenant_id) as session:
            ledger.credit(
                session, user_id=user.id, amount=tokens, provider_transaction_id=f"pay-{uuid4()}"
            )
    return Person(user.id, user.tenant_id, token, email)


@pytest.fixture
def person(backend: Backend) -> MakePerson:
    return lambda **given: make_person(backend, **given)


@pytest.fixture
def demo(backend: Backend) -> Backend:
    """The demo catalog is in."""
    catalog.seed_demo(backend)
    return backend


@pytest.fixture
def app(demo: Backend) -> Iterator[Flask]:
    app = create_app(demo.settings)
    yield app
    app.extensions["comfyfleet"].close()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()
