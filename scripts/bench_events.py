"""Submits with a thousand idle event streams open, against submits without."""

import resource
import socket
import statistics
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import requests

from scripts import load
from scripts.bench_bed import bed
from scripts.bench_result import Result, progress
from scripts.bench_submit import CONNECTIONS, ROUND_SECONDS, WARM_UP_SECONDS, buyers, orders
from tasks import catalog

STREAMS = 1000
BLOCKS = 5  # of rounds without streams, then with them
ROUNDS = 4


def run() -> Result:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the servers inherit it
    with bed(max_active_jobs=10**9) as made:
        catalog.seed_demo(made.backend)
        tokens = buyers(made)
        with made.gunicorn("webapp.wsgi:app") as port:
            load.drive(port, orders(tokens), connections=CONNECTIONS, seconds=WARM_UP_SECONDS)
            return _compare(port, tokens, _job_of_each(port, tokens))


def _compare(port: int, tokens: list[str], jobs: list[str]) -> Result:
    quiet: list[float] = []
    watched: list[float] = []
    ratios: list[float] = []
    for number in range(BLOCKS):
        progress(f"block {number + 1} of {BLOCKS}")
        without = [_rate(port, tokens) for _ in range(ROUNDS)]
        with _streams(port, tokens, jobs) as connections:
            with_them = [_rate(port, tokens) for _ in range(ROUNDS)]
            open_streams = sum(map(_is_open, connections))
        quiet, watched = quiet + without, watched + with_them
        ratios.append(statistics.median(with_them) / statistics.median(without))
    figures = {
        "events_submit_rate_ratio": statistics.median(ratios),
        "events_streams": open_streams,
        "submits_per_second_without": statistics.median(quiet),
        "submits_per_second_with": statistics.median(watched),
    }
    return Result("events", figures, {"without": quiet, "with": watched, "ratios": ratios})


def _rate(port: int, tokens: list[str]) -> float:
    outcome = load.drive(port, orders(tokens), connections=CONNECTIONS, seconds=ROUND_SECONDS)
    if set(outcome.statuses) != {201}:
        raise RuntimeError(f"Not every request was accepted: {outcome.statuses}")
    return outcome.rate


def _job_of_each(port: int, tokens: list[str]) -> list[str]:
    """A job that waits, for each user: nobody runs it."""
    ids = []
    with requests.Session() as session:
        for token in tokens:
            answer = session.post(
                f"http://127.0.0.1:{port}/api/ai-jobs",
                json={"effect_id": "colour-card", "idempotency_key": uuid.uuid4().hex},
                headers={"Authorization": f"Bearer {token}"},
                timeout=10,
            )
            ids.append(answer.json()["id"])
    return ids


@contextmanager
def _streams(port: int, tokens: list[str], jobs: list[str]) -> Iterator[list[socket.socket]]:
    with ExitStack() as held:
        connections = []
        for number in range(STREAMS):
            token, job = tokens[number % len(tokens)], jobs[number % len(jobs)]
            connection = held.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            connection.sendall(
                f"GET /api/ai-jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {token}\r\n\r\n".encode()
            )
            if not connection.recv(65536).startswith(b"HTTP/1.1 200"):
                raise RuntimeError("A stream was refused.")
            connections.append(connection)
        yield connections


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass  # events and comments that have come meanwhile
    except BlockingIOError:
        return True
    return False
