"""How often somebody may ask: by token, and by IP address where there is none.

Counted in Redis, so that all web processes count together. When Redis is away each process
counts for itself until it is back: a limit that is too generous for a moment is better
than an API that stands still.
"""

import logging
import time
from dataclasses import dataclass, field

from flask import current_app, g, request
from limits import RateLimitItem, parse
from limits.storage import MemoryStorage, RedisStorage, Storage
from limits.strategies import FixedWindowRateLimiter
from redis.exceptions import RedisError

from models.errors import RateLimited
from models.settings import BadSetting, Settings

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 0.3
_REST_SECONDS = 5.0  # after a failure, before Redis is asked again
_LOTS = 50  # a process pays for a fiftieth of a limit at a time, or for one request
_MOST_CALLERS = 50_000

KINDS = {"auth", "register", "submit", "upload", "api", "worker"}

#: Calls that are counted apart. Everything else is "api".
CLASSES = {
    "auth.register": "auth",
    "auth.login": "auth",
    "ai-jobs.submit": "submit",
    "uploads.announce": "upload",
    "videos.create": "upload",
    "worker.register": "register",
}


@dataclass
class RateLimits:
    """The counters of one process."""

    limits: dict[str, RateLimitItem]
    shared: FixedWindowRateLimiter
    own: FixedWindowRateLimiter = field(
        default_factory=lambda: FixedWindowRateLimiter(MemoryStorage())
    )
    alone_until: float = 0.0
    paid: dict[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: Settings) -> "RateLimits":
        limits = {}
        for word in settings.rate_limits.split():
            name, _, limit = word.partition("=")
            try:
                limits[name] = parse(limit)
            except ValueError:
                raise BadSetting(f"COMFYFLEET_RATE_LIMITS: {word!r} is no limit.") from None
        if missing := KINDS - set(limits):
            raise BadSetting(f"COMFYFLEET_RATE_LIMITS lacks {', '.join(sorted(missing))}.")
        return cls(limits, FixedWindowRateLimiter(_redis_storage(settings.redis_url)))

    def hit(self, kind: str, who: str) -> None:
        """Count one request. Busy callers are counted by the lot, to ask Redis less often."""
        if left := self.paid.pop((kind, who), 0):
            if left > 1:
                self.paid[kind, who] = left - 1
            return
        limit = self.limits[kind]
        lot = limit.amount // _LOTS
        if lot > 1 and self._allows(limit, kind, who, cost=lot):
            if len(self.paid) > _MOST_CALLERS:
                self.paid.clear()
            self.paid[kind, who] = lot - 1
        else:
            self._count(limit, kind, who)

    def _allows(self, limit: RateLimitItem, kind: str, who: str, *, cost: int) -> bool:
        if time.monotonic() < self.alone_until:
            return False
        try:
            return self.shared.test(limit, kind, who, cost=cost) and self.shared.hit(
                limit, kind, who, cost=cost
            )
        except RedisError:
            return False  # _count asks again, and says so

    def _count(self, limit: RateLimitItem, kind: str, who: str) -> None:
        limiter = self.own if time.monotonic() < self.alone_until else self.shared
        try:
            allowed = limiter.hit(limit, kind, who)
        except RedisError as error:
            logger.warning("Counting requests alone: Redis does not answer (%s).", error)
            self.alone_until = time.monotonic() + _REST_SECONDS
            limiter = self.own
            allowed = limiter.hit(limit, kind, who)
        if not allowed:
            wait = self._seconds_left(limiter, limit, kind, who)
            raise RateLimited(
                f"At most {limit.amount} requests every {limit.get_expiry()} seconds. "
                f"Try again in {wait} seconds.",
                retry_after_seconds=wait,
            )

    def _seconds_left(
        self, limiter: FixedWindowRateLimiter, limit: RateLimitItem, kind: str, who: str
    ) -> int:
        try:
            reset = limiter.get_window_stats(limit, kind, who).reset_time
        except RedisError:
            return limit.get_expiry()
        return max(1, int(reset - time.time()) + 1)


def _redis_storage(redis_url: str) -> Storage:
    return RedisStorage(
        redis_url,
        key_prefix="comfyfleet:limits",
        socket_timeout=_PATIENCE_SECONDS,
        socket_connect_timeout=_PATIENCE_SECONDS,
    )


def limit_request() -> None:
    """Before a view: count this request for its token, or for its IP."""
    who = g.get("principal")
    kind = CLASSES.get(request.endpoint or "", "api")
    _limits().hit(kind, str(who.token_id) if who else f"ip:{request.remote_addr}")


def limit_worker() -> None:
    """Generous: it is there to stop a worker that runs wild."""
    _limits().hit("worker", str(g.worker.id))


def count_failed_sign_in() -> None:
    """Guessing tokens is limited like guessing passwords."""
    _limits().hit("auth", f"ip:{request.remote_addr}")


def _limits() -> RateLimits:
    limits: RateLimits = current_app.extensions["comfyfleet.rate_limits"]
    return limits
