"""`POST /api/ai-jobs`, all of it, against a bare Flask endpoint that does one INSERT."""

import itertools
import json
import statistics
import uuid
from collections.abc import Iterator

from models import ledger, users
from scripts import load
from scripts.bench_bed import Bed, bed
from scripts.bench_result import Result, progress
from tasks import catalog

USERS = 500
CONNECTIONS = 8
SECONDS = 5.0
ROUNDS = 5


def run() -> Result:
    with bed(max_active_jobs=10**9) as made:
        catalog.seed_demo(made.backend)
        progress(f"{USERS} users")
        tokens = _users(made)
        with (
            made.gunicorn("webapp.wsgi:app") as ours,
            made.gunicorn("scripts.bench_bare:app") as bare,
        ):
            return _compare(ours, bare, tokens)


def _compare(ours: int, bare: int, tokens: list[str]) -> Result:
    """Round after round, in turns, so that both see the same moods of the machine."""
    rounds: list[dict[str, float]] = []
    for port in (ours, bare):
        load.drive(port, _orders(tokens), connections=CONNECTIONS, seconds=2)
    for number in range(ROUNDS):
        progress(f"round {number + 1} of {ROUNDS}")
        measured = {
            name: load.drive(port, _orders(tokens), connections=CONNECTIONS, seconds=SECONDS)
            for name, port in (("ours", ours), ("bare", bare))
        }
        for outcome in measured.values():
            if set(outcome.statuses) != {201}:
                raise RuntimeError(f"Not every request was accepted: {outcome.statuses}")
        rounds.append(
            {f"{name}_rate": outcome.rate for name, outcome in measured.items()}
            | {f"{name}_p50_ms": o.percentile(0.5) * 1000 for name, o in measured.items()}
            | {f"{name}_p99_ms": o.percentile(0.99) * 1000 for name, o in measured.items()}
        )
    middle = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    figures = {
        "submit_rate_ratio": statistics.median(r["ours_rate"] / r["bare_rate"] for r in rounds),
        "submit_p99_ratio": statistics.median(r["ours_p99_ms"] / r["bare_p99_ms"] for r in rounds),
        "submit_requests_per_second": middle["ours_rate"],
        "bare_requests_per_second": middle["bare_rate"],
        "submit_p50_ms": middle["ours_p50_ms"],
        "submit_p99_ms": middle["ours_p99_ms"],
        "bare_p99_ms": middle["bare_p99_ms"],
    }
    return Result("submit", figures, {"rounds": rounds})


def _orders(tokens: list[str]) -> Iterator[bytes]:
    for token in itertools.cycle(tokens):
        body = {
            "effect_id": "colour-card",
            "inputs": {},
            "idempotency_key": uuid.uuid4().hex,
        }
        yield load.post("/api/ai-jobs", json.dumps(body).encode(), token=token)


def _users(made: Bed) -> list[str]:
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
