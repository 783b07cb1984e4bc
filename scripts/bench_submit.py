"""`POST /api/ai-jobs`, all of it, against a bare Flask endpoint that does one INSERT."""

import itertools
import json
import statistics
import uuid
from collections.abc import Iterator
from operator import truediv

from models import ledger, users
from scripts import load
from scripts.bench_bed import Bed, bed
from scripts.bench_result import Result, progress
from tasks import catalog

USERS = 500
CONNECTIONS = 8
WARM_UP_SECONDS = 3.0
ROUND_SECONDS = 1.0
ROUNDS = 30
#: With a line of JSON for each request, as `comfyfleet serve` has it.
LOGGED = ("--config", "python:webapp.gunicorn_hooks", "--access-logfile", "-")


def run() -> Result:
    with bed(max_active_jobs=10**9) as made:
        catalog.seed_demo(made.backend)
        progress(f"{USERS} users")
        tokens = buyers(made)
        with (
            made.gunicorn("webapp.wsgi:app") as ours,
            made.gunicorn("webapp.wsgi:app", options=LOGGED) as logged,
            made.gunicorn("scripts.bench_bare:app") as bare,
        ):
            return _compare({"ours": ours, "logged": logged, "bare": bare}, tokens)


def _compare(ports: dict[str, int], tokens: list[str]) -> Result:
    """Many short rounds in turns, so that all see the same moods of the machine."""
    for port in ports.values():
        load.drive(port, orders(tokens), connections=CONNECTIONS, seconds=WARM_UP_SECONDS)
    rates: dict[str, list[float]] = {name: [] for name in ports}
    latencies: dict[str, list[float]] = {name: [] for name in ports}
    for number in range(ROUNDS):
        if number % 10 == 0:
            progress(f"round {number + 1} of {ROUNDS}")
        for name, port in ports.items():
            outcome = load.drive(
                port, orders(tokens), connections=CONNECTIONS, seconds=ROUND_SECONDS
            )
            if set(outcome.statuses) != {201}:
                raise RuntimeError(f"Not every request was accepted: {outcome.statuses}")
            rates[name].append(outcome.rate)
            latencies[name] += outcome.latencies
    p50 = {name: load.percentile(latencies[name], 0.5) * 1000 for name in ports}
    p99 = {name: load.percentile(latencies[name], 0.99) * 1000 for name in ports}
    figures = {
        "submit_rate_ratio": statistics.median(map(truediv, rates["ours"], rates["bare"])),
        "submit_p99_ratio": p99["ours"] / p99["bare"],
        "submit_logged_rate_ratio": statistics.median(map(truediv, rates["logged"], rates["ours"])),
        "submit_requests_per_second": statistics.median(rates["ours"]),
        "bare_requests_per_second": statistics.median(rates["bare"]),
        "submit_p50_ms": p50["ours"],
        "submit_p99_ms": p99["ours"],
        "bare_p99_ms": p99["bare"],
    }
    return Result("submit", figures, {"rates": rates})


def orders(tokens: list[str]) -> Iterator[bytes]:
    for token in itertools.cycle(tokens):
        body = {
            "effect_id": "colour-card",
            "inputs": {},
            "idempotency_key": uuid.uuid4().hex,
        }
        yield load.post("/api/ai-jobs", json.dumps(body).encode(), token=token)


def buyers(made: Bed) -> list[str]:
    tokens = []
    for number in range(USERS):
        with made.backend.databases.central() as session:
            user = users.register(
                session,
                email=f"u{number}@example.com",
                password_hash="none",  # noqa: S106 - nobody signs in with it
                name="",
                pool="main",
            )
            tokens.append(users.issue_token(session, user, days=1))
        with made.backend.databases.tenant(user.tenant_id) as session:
            ledger.credit(
                session, user_id=user.id, amount=10**9, provider_transaction_id=f"bench-{number}"
            )
    return tokens
