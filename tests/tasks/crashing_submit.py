"""A process that submits one job and dies at a given commit: `python -m … N before|after`."""

import itertools
import os
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, event

from models import hot_path, prepared
from models.settings import Settings
from tasks import submission
from tasks.backend import Backend

EXIT_CODE = 77


def main() -> None:
    fatal, moment = int(sys.argv[1]), sys.argv[2]
    backend = Backend.open(Settings.from_env())
    die_at_commit(backend, fatal, after=moment == "after")
    submission.submit(
        backend,
        submission.Request(
            tenant_id=UUID(os.environ["CRASH_TENANT"]),
            user_id=UUID(os.environ["CRASH_USER"]),
            effect="colour-card",
            idempotency_key="the-one",
            inputs={},
        ),
    )
    backend.close()  # with what could wait


def die_at_commit(backend: Backend, fatal: int, *, after: bool) -> None:
    """Just before the commit, or just before the transaction that follows it."""
    transactions = itertools.count(1)

    def count(*_: object) -> None:
        if next(transactions) == fatal + after:
            os._exit(EXIT_CODE)

    def count_unless_reading(connection: Connection) -> None:
        if not connection.get_execution_options().get("read_only"):
            count()

    moment = "begin" if after else "commit"
    for name in ("central", "pool:main"):
        event.listen(backend.databases.engine(name), moment, count_unless_reading)
    if backend.databases.on_postgres:
        hot_path.round_trip = _dying(count)


def _dying(count: Callable[[], None]) -> Any:
    """The hot path's transactions are single statements: dying before one is dying before both."""

    def round_trip(*given: Any, **values: Any) -> Any:
        count()
        return prepared.round_trip(*given, **values)

    return round_trip


if __name__ == "__main__":
    main()
