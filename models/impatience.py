"""For a process that must not wait for a database for ever: the control worker.

A timeout for connecting ends the wait for a server that can't be reached. Nothing ends the wait
for one that was reached and then stopped answering, or for a row that somebody keeps locked;
here both end. What was asked is lost then, and asked again by the next run.
"""

import select
import time
from functools import partial
from typing import Any

import psycopg2
from psycopg2 import extensions
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, Pool


def wait_at_most(seconds: float) -> None:
    """For all PostgreSQL connections of this process, from now on. A lock gets a tenth of it."""
    extensions.set_wait_callback(partial(_wait, seconds))
    event.listen(Pool, "connect", partial(_bound_locks, seconds / 10))


def _wait(seconds: float, connection: Any) -> None:
    """psycopg2 calls this for every answer, and closes a connection on which it fails."""
    until = time.monotonic() + seconds
    while (state := connection.poll()) != extensions.POLL_OK:
        left = until - time.monotonic()
        reads = [connection.fileno()] if state == extensions.POLL_READ else []
        writes = [connection.fileno()] if state == extensions.POLL_WRITE else []
        if left <= 0 or not any(select.select(reads, writes, [], left)):
            raise psycopg2.OperationalError(f"The database did not answer for {seconds:g} s.")


def _bound_locks(seconds: float, connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    if isinstance(connection, extensions.connection):
        cursor = connection.cursor()
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{seconds * 1000:.0f}ms"])
        cursor.close()
        connection.commit()
