"""What this server was asked, how it answered, and how long that took.

By route, never by job, tenant or user: each new label is kept for ever. Counted for all web
processes together (shared_counts.py).
"""

import logging
from collections.abc import Callable
from time import perf_counter

from flask import Flask, Response, g, request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from webapp import shared_counts

logger = logging.getLogger(__name__)

ARE_SHARED = shared_counts.share()

registry = CollectorRegistry()
REQUESTS = Counter(
    "comfyfleet_http_requests",
    "Requests answered.",
    ("route", "method", "status"),
    registry=registry,
)
SECONDS = Histogram(
    "comfyfleet_http_request_seconds",
    "From the first byte of a request until its answer is made.",
    ("route", "method"),
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=registry,
)
STREAMS_OPEN = Gauge(
    "comfyfleet_live_streams_open",
    "Event streams that clients have open.",
    multiprocess_mode="livesum",
    registry=registry,
)

METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

Count = Callable[[float], None]
_counts: dict[tuple[str, str, int], Count] = {}  # looking up labels costs more than counting


def install(app: Flask) -> None:
    app.before_request(_begin)
    app.after_request(_count)


def all_counts() -> CollectorRegistry:
    """To be told: of all processes, or of this one if it is alone."""
    if not ARE_SHARED:
        return registry
    merged = CollectorRegistry()
    shared_counts.SharedCounts(merged)
    return merged


def _begin() -> None:
    g.began_at = perf_counter()


def _count(response: Response) -> Response:
    route = request.url_rule.rule if request.url_rule else "(none)"
    method = request.method if request.method in METHODS else "(other)"
    key = (route, method, response.status_code)
    try:
        count = _counts.get(key) or _counts.setdefault(key, _counting(*key))
        count(perf_counter() - g.began_at)
    except OSError as error:  # no room for it: an answer is worth more than a count
        logger.error("A request could not be counted: %s", error)
    return response


def _counting(route: str, method: str, status: int) -> Count:
    requests, seconds = REQUESTS.labels(route, method, status), SECONDS.labels(route, method)

    def count(took: float) -> None:
        requests.inc()
        seconds.observe(took)

    return count
