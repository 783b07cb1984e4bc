"""Brings the real servers the tests talk to, once for a whole run.

The plain run, or the controller of xdist, starts what the environment does not give and puts
the addresses into the environment, where xdist's workers find them: TEST_DATABASE_URL (of a
superuser), TEST_REDIS_URL, TEST_S3_URL with TEST_S3_ACCESS_KEY and TEST_S3_SECRET_KEY.
A server that can't be had fails the run.
"""

import os
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest
import requests
from redis import Redis, RedisError

from scripts import servers

held = ExitStack()
header = pytest.StashKey[str]()


def start_postgres(folder: Path) -> dict[str, str]:
    return {"TEST_DATABASE_URL": held.enter_context(servers.postgres(folder))}


def start_redis(folder: Path) -> dict[str, str]:
    return {"TEST_REDIS_URL": held.enter_context(servers.redis(folder))}


def start_s3(folder: Path) -> dict[str, str]:
    server = held.enter_context(servers.s3(folder))
    return {
        "TEST_S3_URL": server.endpoint_url,
        "TEST_S3_ACCESS_KEY": server.access_key,
        "TEST_S3_SECRET_KEY": server.secret_key,
    }


def postgres_version(url: str) -> str:
    with closing(psycopg2.connect(url.replace("+psycopg2", "", 1))) as connection:
        return f"PostgreSQL {connection.info.parameter_status('server_version')}"


def redis_version(url: str) -> str:
    with Redis.from_url(url) as client:
        facts = client.info("server")
    if "valkey_version" in facts:
        return f"Valkey {facts['valkey_version']}"
    return f"Redis {facts['redis_version']}"


def s3_version(url: str) -> str:
    return f"S3 {requests.get(url, timeout=5).headers.get('Server', '')}".strip()


STARTS = {
    "TEST_DATABASE_URL": start_postgres,
    "TEST_REDIS_URL": start_redis,
    "TEST_S3_URL": start_s3,
}
VERSIONS: dict[str, Callable[[str], str]] = {
    "TEST_DATABASE_URL": postgres_version,
    "TEST_REDIS_URL": redis_version,
    "TEST_S3_URL": s3_version,
}


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or config.option.collectonly or config.option.help:
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it tidies up like Ctrl-C
    try:
        start_missing_servers()
    except servers.ServerUnavailable as unavailable:
        raise pytest.UsageError(str(unavailable)) from unavailable
    config.stash[header] = "servers: " + ", ".join(describe(variable) for variable in VERSIONS)


def start_missing_servers() -> None:
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="comfyfleet-tests-")))
    # The threads stay until the end of the run: a server ends with the thread that started it.
    pool = held.enter_context(ThreadPoolExecutor(len(STARTS)))
    missing = [start for variable, start in STARTS.items() if variable not in os.environ]
    starting = [pool.submit(start, folder) for start in missing]
    wait(starting)
    for started in starting:
        os.environ.update(started.result())


def describe(variable: str) -> str:
    url = os.environ[variable]
    where = urlsplit(url)
    place = f"{where.hostname}:{where.port}"  # never the whole URL: it may hold a password
    try:
        return f"{VERSIONS[variable](url)} at {place}"
    except (psycopg2.Error, RedisError, requests.RequestException) as error:
        raise pytest.UsageError(f"{variable}: {place} does not answer: {error}") from error


def pytest_report_header(config: pytest.Config) -> str:
    return config.stash.get(header, "servers: none, this is no run")


def pytest_unconfigure() -> None:
    held.close()
