"""Engines and sessions: the only place that knows where a tenant's rows live.

    with databases.central() as session: ...            one transaction, central database
    with databases.tenant(tenant_id) as session: ...    one transaction, that tenant only
    with databases.pool("main") as session: ...         one transaction, every tenant of a pool

Each block is one transaction: it commits at the end and rolls back on an error. Two
walls keep tenants apart. A tenant session adds `tenant_id = …` to every ORM statement by
itself; and on PostgreSQL the policies of the pool's tables compare every row with
`app.tenant_id`, set when the transaction begins, for a role that does not own the tables.
Code that forgets to say which tenant it means sees nothing.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, Uuid, bindparam, create_engine, event, make_url, text
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.pool import ConnectionPoolEntry

from models import database_spans
from models.base import TenantBase
from models.errors import NotFound
from models.settings import Settings

_POOL_OF_TENANT = text("SELECT pool FROM tenants WHERE id = :tenant_id").bindparams(
    bindparam("tenant_id", type_=Uuid())
)

APP_ROLE = "comfyfleet_app"  # owns nothing; row-level security applies to it
EVERY_TENANT = "*"


class Databases:
    """One engine per database, made on first use and never shared across a fork."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._urls = {"central": settings.central_url} | {
            f"pool:{name}": url for name, url in settings.pools.items()
        }
        self._engines: dict[str, Engine] = {}
        self._making = threading.Lock()
        self._pool_of: dict[UUID, str] = {}
        _every_instance.add(self)

    @property
    def pools(self) -> list[str]:
        return list(self._settings.pools)

    @property
    def on_postgres(self) -> bool:
        """Whether all of them are PostgreSQL."""
        return all(url.startswith("postgresql") for url in self._urls.values())

    @contextmanager
    def central(self, *, read_only: bool = False) -> Iterator[Session]:
        """`read_only` saves the BEGIN and COMMIT: each statement stands for itself."""
        engine = self.engine("central")
        with Session(_reading(engine) if read_only else engine, expire_on_commit=False) as session:
            if read_only:
                yield session
            else:
                with session.begin():
                    yield session

    @contextmanager
    def tenant(self, tenant_id: UUID) -> Iterator[Session]:
        pool = self.pool_of(tenant_id)
        with TenantSession(self.engine(f"pool:{pool}"), tenant_id) as session, session.begin():
            yield session

    @contextmanager
    def pool(self, name: str, *, snapshot: bool = False) -> Iterator[Session]:
        """Every tenant of a pool at once: for sweepers and auditors, not for requests.

        With `snapshot`, every statement sees the same moment.
        """
        engine = self.engine(f"pool:{name}")
        if snapshot and engine.dialect.name == "postgresql":
            engine = engine.execution_options(isolation_level="REPEATABLE READ")
        with TenantSession(engine, None) as session, session.begin():
            yield session

    def pool_of(self, tenant_id: UUID) -> str:
        if (known := self._pool_of.get(tenant_id)) is not None:
            return known
        with self.central(read_only=True) as session:
            pool = session.scalar(_POOL_OF_TENANT, {"tenant_id": tenant_id})
        if pool is None:
            raise NotFound("There is no such tenant.")
        self.remember_pool(tenant_id, str(pool))
        return str(pool)

    def remember_pool(self, tenant_id: UUID, pool: str) -> None:
        if len(self._pool_of) > 100_000:  # bounded: ids are cheap to look up again
            self._pool_of.clear()
        self._pool_of[tenant_id] = pool

    def engine(self, name: str) -> Engine:
        """`central`, or `pool:NAME`."""
        if name not in self._urls:
            raise LookupError(f"No database is configured for {name!r}.")
        if name not in self._engines:
            with self._making:  # one engine per database, however many threads ask first
                if name not in self._engines:
                    engine = make_engine(
                        self._urls[name], connections=self._settings.database_connections
                    )
                    database_spans.watch(engine)
                    self._engines[name] = engine
        return self._engines[name]

    def forget_connections(self) -> None:
        """In a forked child: the parent's sockets are the parent's."""
        self._making = threading.Lock()
        for engine in self._engines.values():
            engine.dispose(close=False)

    def close(self) -> None:
        for engine in self._engines.values():
            engine.dispose()
        self._engines.clear()


_every_instance: "weakref.WeakSet[Databases]" = weakref.WeakSet()


def _after_fork() -> None:
    for databases in _every_instance:
        databases.forget_connections()


os.register_at_fork(after_in_child=_after_fork)


class TenantSession(Session):
    """A session that can see one tenant's rows. `tenant_id=None` sees the whole pool."""

    def __init__(self, engine: Engine, tenant_id: UUID | None) -> None:
        super().__init__(engine, expire_on_commit=False)
        self.tenant_id = tenant_id


@event.listens_for(TenantSession, "do_orm_execute")
def _filter_by_tenant(state: ORMExecuteState) -> None:
    session = state.session
    if not isinstance(session, TenantSession) or session.tenant_id is None:
        return
    if state.is_column_load or state.is_relationship_load:
        return
    tenant_id = session.tenant_id
    state.statement = state.statement.options(
        with_loader_criteria(
            TenantBase, lambda table: table.tenant_id == tenant_id, include_aliases=True
        )
    )


@event.listens_for(TenantSession, "before_flush")
def _stamp_tenant(session: Session, *_: Any) -> None:
    tenant_id = getattr(session, "tenant_id", None)
    if tenant_id is None:
        return
    for row in session.new:
        if isinstance(row, TenantBase):
            row.tenant_id = row.tenant_id or tenant_id
            if row.tenant_id != tenant_id:
                raise PermissionError("This row belongs to another tenant than the session.")


@event.listens_for(TenantSession, "after_begin")
def _tell_postgres_the_tenant(session: Session, _: Any, connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        tenant_id = getattr(session, "tenant_id", None)
        connection.execute(
            text("SELECT set_config('app.tenant_id', :tenant, true)"),
            {"tenant": str(tenant_id) if tenant_id else EVERY_TENANT},
        )


def make_engine(url: str, *, connections: int = 8, as_owner: bool = False) -> Engine:
    """`as_owner` is for migrations: no change of role, no policies."""
    if make_url(url).get_backend_name() == "sqlite":
        return _sqlite(url)
    engine = create_engine(
        url,
        pool_size=connections,
        max_overflow=connections,
        pool_recycle=600,
        pool_timeout=10,
        hide_parameters=True,  # an error is logged with its statement; its values are people's
        connect_args={"connect_timeout": 5, "application_name": "comfyfleet"},
    )
    if not as_owner:
        event.listen(engine, "connect", _take_the_app_role)
    return engine


def _take_the_app_role(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET SESSION ROLE {APP_ROLE}")
    cursor.close()
    connection.commit()


def _sqlite(url: str) -> Engine:
    """WAL, foreign keys, and transactions that we begin ourselves.

    A write transaction takes the lock at once (IMMEDIATE): it waits its turn at the
    beginning instead of failing in the middle.
    """
    path = make_url(url).database
    if path and path != ":memory:":
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": 30}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "foreign_keys=ON", "synchronous=NORMAL"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if not connection.get_execution_options().get("read_only"):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _reading(engine: Engine) -> Engine:
    options: dict[str, Any] = {"read_only": True}
    if engine.dialect.name == "postgresql":
        options["isolation_level"] = "AUTOCOMMIT"
    return engine.execution_options(**options)
