"""What happened to a crowd of workers, counted as it happens, and summed up as a report.

Latencies are kept between `begin` and `end` only; what must not happen counts from the first
moment to the last.
"""

import asyncio
import time
from collections import Counter
from typing import Any

from scripts.load import percentile

LAG_SECONDS = 0.05

#: The calls of workers about their jobs: what the figures speak of.
WORKER_CALLS = ("poll", "heartbeat", "complete")


class Tally:
    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()  # "heartbeat 200"
        self.failures: Counter[str] = Counter()  # "heartbeat TimeoutError"
        self.leases_lost = 0
        self.cancelled = 0
        self.completed = 0
        self.ordered = 0
        self.longest_silence = 0.0  # of a worker that held a lease, by our clock
        self._measures = False
        self._latencies: dict[str, list[float]] = {}
        self._lags: list[float] = []
        self._began = self._ended = 0.0
        self._completed_before = self._completed_after = 0

    def begin(self) -> None:
        self._measures, self._began = True, time.perf_counter()
        self._completed_before = self.completed

    def end(self) -> None:
        self._measures, self._ended = False, time.perf_counter()
        self._completed_after = self.completed

    def answered(self, call: str, status: int, seconds: float) -> None:
        self.answers[f"{call} {status}"] += 1
        if self._measures:
            self._latencies.setdefault(call, []).append(seconds)

    def failed(self, call: str, why: str) -> None:
        self.failures[f"{call} {why}"] += 1

    def silent(self, seconds: float) -> None:
        self.longest_silence = max(self.longest_silence, seconds)

    async def watch_lag(self) -> None:
        """How late this process is itself: its latencies are too high by as much."""
        while True:
            due = time.perf_counter() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            if self._measures:
                self._lags.append(time.perf_counter() - due)

    def report(self) -> dict[str, Any]:
        of_workers = [ms for call in WORKER_CALLS for ms in self._latencies.get(call, [])]
        return {
            "seconds": self._ended - self._began,
            "jobs": self._completed_after - self._completed_before,
            "ordered": self.ordered,
            "completed": self.completed,
            "cancelled": self.cancelled,
            "leases_lost": self.leases_lost,
            "longest_silence": self.longest_silence,
            "answers": dict(self.answers),
            "failures": dict(self.failures),
            "lag_p99_ms": percentile(self._lags, 0.99) * 1000,
            "worker_calls": _figures(of_workers),
            "calls": {call: _figures(values) for call, values in sorted(self._latencies.items())},
        }


def _figures(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {"count": 0}
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    return {"count": len(seconds)} | {
        name: percentile(seconds, share) * 1000 for name, share in shares.items()
    }
