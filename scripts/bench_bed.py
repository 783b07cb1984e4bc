"""What benches stand on: servers of their own, a migrated backend, gunicorn processes."""

import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg2
from sqlalchemy import make_url

from models import migrate
from models.settings import Settings
from scripts import servers
from scripts.server_process import free_port
from tasks.backend import Backend

STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Bed:
    folder: Path
    settings: Settings
    backend: Backend

    def environment(self) -> dict[str, str]:
        given = {
            f"COMFYFLEET_{name.upper()}": str(value) for name, value in vars(self.settings).items()
        }
        return os.environ | given

    @contextmanager
    def gunicorn(
        self,
        app: str,
        *,
        port: int = 0,
        workers: int = 2,
        threads: int = 4,
        options: Sequence[str] = (),
    ) -> Iterator[int]:
        """An application behind the server we recommend; yields its port."""
        port = port or free_port()
        arguments = f"--bind 127.0.0.1:{port} --workers {workers} --threads {threads}".split()
        command = [
            sys.executable, "-m", "gunicorn", "--worker-class", "gthread", "--keep-alive", "75",
            "--no-control-socket", "--preload", *arguments, *options, app,
        ]  # fmt: skip
        with self.program(f"gunicorn-{port}", command, lambda: _answers(port)):
            yield port

    @contextmanager
    def program(
        self, name: str, command: Sequence[str], is_ready: Callable[[], bool]
    ) -> Iterator[int]:
        """A program of ours that can be used; yields its process id."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log)
            try:
                for _ in range(200):
                    if process.poll() is not None or is_ready():
                        break
                    time.sleep(0.1)
                if process.poll() is not None or not is_ready():
                    text = Path(log.name).read_text()
                    raise RuntimeError(f"{name} did not start:\n{text[-2000:]}")
                yield process.pid
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
                process.kill()  # nothing is left of it when its databases go
                process.wait()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1)
    except OSError:
        return False
    return True


@contextmanager
def bed(**settings: Any) -> Iterator[Bed]:
    """PostgreSQL as in production (fsync on), Redis, local storage; removed afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="comfyfleet-bench-")))
        admin = stack.enter_context(servers.postgres(folder / "postgres", durable=True))
        redis_url = stack.enter_context(servers.redis(folder / "redis"))
        made = replace(
            Settings(
                central_url=_database(admin, "central"),
                pool_urls=f"main={_database(admin, 'pool')}",
                redis_url=redis_url,
                storage_url=f"file://{folder}/objects",
                secret_key=secrets.token_hex(),
            ),
            **settings,
        )
        list(migrate.upgrade_all(made))
        backend = Backend.open(made)
        stack.callback(backend.close)
        yield Bed(folder, made, backend)


def _database(admin: str, name: str) -> str:
    url = make_url(admin)
    connection = psycopg2.connect(
        host=url.host, port=url.port, user=url.username, password=url.password, dbname=url.database
    )
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    connection.close()
    return url.set(database=name).render_as_string(hide_password=False)
