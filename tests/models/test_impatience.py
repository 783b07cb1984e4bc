"""A process that asked for it does not wait for a database for ever: tried in one of its own."""

import subprocess
import sys
from pathlib import Path

import psycopg2
from sqlalchemy import make_url

from tasks.backend import Backend
from tests.models.silent_server import SilentServer

ASK = """
import sys
from sqlalchemy import text
from models import impatience
from models.session import make_engine
impatience.wait_at_most(2)
with make_engine(sys.argv[1]).connect() as connection:
    print("connected", connection.scalar(text("SHOW lock_timeout")), flush=True)
    sys.stdin.readline()
    connection.execute(text(sys.argv[2]))
"""


def ask(url: str, sql: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", ASK, url, sql],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said_in_the_end(process: "subprocess.Popen[str]") -> str:
    return process.communicate("go on\n", timeout=60)[1]


def test_a_server_that_was_reached_and_then_stopped_answering(postgres: Backend) -> None:
    with SilentServer(make_url(postgres.settings.central_url)) as server:
        with ask(server.url, "SELECT 1") as process:
            assert process.stdout
            assert process.stdout.readline() == "connected 200ms\n"
            server.fall_silent()
            assert "OperationalError) The database did not answer for 2 s." in said_in_the_end(
                process
            )
        with ask(server.url, "SELECT 1") as process:  # not even to say who it is
            assert "OperationalError) The database did not answer for 2 s." in said_in_the_end(
                process
            )


def test_a_row_that_somebody_keeps_locked(postgres: Backend) -> None:
    url = make_url(postgres.settings.central_url)
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    holder = psycopg2.connect(plain)
    with holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLE tenants")
        with ask(url.render_as_string(hide_password=False), "SELECT 1 FROM tenants") as process:
            assert "canceling statement due to lock timeout" in process.communicate("\n", 60)[1]
    holder.close()
