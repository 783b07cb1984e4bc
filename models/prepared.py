"""Statements that PostgreSQL plans once per connection, and not at every call.

For the hot path only: a plan costs more there than running it. Not for connections behind
a pooler that hands one connection to many clients in turn (docs/operations.md).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from models import spans

_PARAMETER = re.compile(r"%\((\w+)\)s")


class Prepared:
    """SQL with %(named)s parameters. `types` names the PostgreSQL type of each."""

    def __init__(self, name: str, sql: str, types: Mapping[str, str]) -> None:
        self.name = name
        numbers = {parameter: f"${number}" for number, parameter in enumerate(types, start=1)}
        body = _PARAMETER.sub(lambda found: numbers[found[1]], sql)
        declared = f"({', '.join(types.values())})" if types else ""
        given = f"({', '.join(f'%({parameter})s' for parameter in types)})" if types else ""
        self.prepare = f"PREPARE {name} {declared} AS {body}"
        self.execute = f"EXECUTE {name} {given};"


NAME_TENANT = Prepared(
    "name_tenant",
    "SELECT set_config('app.tenant_id', %(app_tenant)s, true)",
    {"app_tenant": "text"},
)

# For what may be lost with a crash of the database, because nobody was promised anything.
NO_WAIT_FOR_DISK = Prepared(
    "no_wait_for_disk", "SELECT set_config('synchronous_commit', 'off', true)", {}
)


def round_trip(engine: Engine, *statements: Prepared, values: Mapping[str, Any]) -> Any | None:
    """Run them together: one round trip, one transaction. The first row of the last.

    In autocommit, PostgreSQL runs what arrives together as one transaction.
    """
    names = "+".join(statement.name for statement in statements)
    with spans.span(names, is_call=True, **{"db.system": "postgresql"}):
        return _round_trip(engine, statements, values)


def _round_trip(
    engine: Engine, statements: Sequence[Prepared], values: Mapping[str, Any]
) -> Any | None:
    connection = engine.raw_connection()
    driver: Any = connection.driver_connection
    try:
        driver.autocommit = True
        cursor = driver.cursor()
        _prepare(cursor, connection.info.setdefault("prepared", set()), statements)
        cursor.execute("".join(statement.execute for statement in statements), _spelled(values))
        row = cursor.fetchone() if cursor.description else None
        cursor.close()
        driver.autocommit = False
    except BaseException as error:
        server_is_gone = driver.closed  # looked at before we close it ourselves
        connection.invalidate(error)  # nobody shall find it in a state of ours
        if server_is_gone:  # then the pool's other connections are dead too
            engine.dispose()
        raise
    finally:
        connection.close()
    return row


def _prepare(cursor: Any, known: set[str], statements: Iterable[Prepared]) -> None:
    for statement in statements:
        if statement.name not in known:
            cursor.execute(statement.prepare)
            known.add(statement.name)


def _spelled(values: Mapping[str, Any]) -> dict[str, Any]:
    """The driver would write a list as an array of text."""
    return {
        name: "{" + ",".join(map(str, value)) + "}" if isinstance(value, list) else value
        for name, value in values.items()
    }
