"""Engines: one per database, never shared with a forked child."""

import os
import threading
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from models import tenants
from models.errors import NotFound
from tasks.backend import Backend
from tests.fixtures import make_person


def test_one_engine_per_database_however_many_threads_ask(backend: Backend) -> None:
    engines: set[Engine] = set()
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        engines.add(backend.databases.engine("pool:second"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(engines) == 1


def test_a_forked_child_opens_connections_of_its_own(postgres: Backend) -> None:
    query = text("SELECT pg_backend_pid()")

    def server_process() -> int:
        with postgres.databases.central(read_only=True) as session:
            return int(session.scalars(query).one())

    parents = server_process()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os.write(writer, str(server_process()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reader, 100)) != parents
    assert server_process() == parents  # and the parent's still works


def test_tenants_live_in_the_pool_they_were_given(backend: Backend) -> None:
    ada, bob = make_person(backend, tokens=5), make_person(backend, tokens=7, pool="second")
    counts = {}
    for pool in ("main", "second"):
        with backend.databases.pool(pool) as session:
            rows = session.execute(text("SELECT tenant_id, balance FROM token_wallets")).all()
            counts[pool] = [balance for _, balance in rows]
    assert counts == {"main": [5], "second": [7]}
    assert backend.databases.pool_of(ada.tenant_id) == "main"
    assert backend.databases.pool_of(bob.tenant_id) == "second"


def test_an_unknown_tenant_is_not_found(backend: Backend) -> None:
    with pytest.raises(NotFound):
        backend.databases.pool_of(uuid4())


def test_an_unknown_database_is_named(backend: Backend) -> None:
    with pytest.raises(LookupError, match="pool:attic"):
        backend.databases.engine("pool:attic")


def test_an_error_rolls_everything_back(backend: Backend) -> None:
    def half_way() -> None:
        with backend.databases.central() as session:
            tenants.create(session, name="gone", pool="main")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError):
        half_way()
    with backend.databases.central(read_only=True) as session:
        assert session.query(tenants.Tenant).filter_by(name="gone").count() == 0


def test_an_error_of_a_statement_is_told_without_its_values(backend: Backend) -> None:
    """It is logged, and values are people's names, hashes and secrets."""
    query = text("SELECT nothing\nFROM nowhere\nWHERE it = :value")
    with pytest.raises(DBAPIError) as failed, backend.databases.central() as session:
        session.execute(query, {"value": "whose-is-this"})
    assert "nowhere" in str(failed.value)
    assert "whose-is-this" not in str(failed.value)
