"""What a process of ours needs to work: settings, databases, object storage, the bell."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from models.object_store import ObjectStore, open_store
from models.session import Databases
from models.settings import Settings
from models.webhook_rules import WebhookRules
from tasks.later import Later
from tasks.news import News
from tasks.tickets import Bell


class BriefMemory:
    """Remembers what was read, for a few seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: dict[str, tuple[float, Any]] = {}

    def get(self, key: str) -> Any | None:
        until, value = self._known.get(key, (0.0, None))
        return value if time.monotonic() < until else None

    def forget(self, key: str) -> None:
        self._known.pop(key, None)

    def forget_all(self) -> None:
        self._known.clear()

    def put(self, key: str, value: Any) -> None:
        if len(self._known) > 1000:  # bounded: it is only read again
            self._known.clear()
        self._known[key] = (time.monotonic() + self._seconds, value)


@dataclass(frozen=True, eq=False)
class Backend:
    settings: Settings
    databases: Databases
    store: ObjectStore
    later: Later
    checks: Later  # asks the storage, which may be slow: tickets do not wait behind it
    bell: Bell
    news: News
    webhook_rules: WebhookRules
    offers: BriefMemory  # effects as read a moment ago (submission.py)
    workflows: BriefMemory  # likewise (uploads.py)
    workers: BriefMemory  # workers by their tokens (webapp/auth.py)
    loads: BriefMemory  # how busy fleets are (heartbeats.py)
    paces: BriefMemory  # how fast fleets work (queue_view.py)
    heads: BriefMemory  # who waits first (queue_view.py)
    ladders: BriefMemory  # where those behind them stand (queue_view.py)
    resting: BriefMemory  # pools that did not answer (steps.py)
    walks: BriefMemory  # how far long walks have come (steps.py)
    before_close: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    def open(cls, settings: Settings) -> "Backend":
        later = Later()
        return cls(
            settings=settings,
            databases=Databases(settings),
            store=open_store(settings),
            later=later,
            checks=Later(),
            bell=Bell(settings.redis_url, later),
            news=News(settings.redis_url, later),
            webhook_rules=WebhookRules.from_settings(settings),
            offers=BriefMemory(settings.catalog_seconds),
            workflows=BriefMemory(settings.catalog_seconds),
            workers=BriefMemory(settings.catalog_seconds),
            loads=BriefMemory(5),
            paces=BriefMemory(settings.catalog_seconds),
            heads=BriefMemory(min(settings.catalog_seconds, 1)),
            ladders=BriefMemory(60),
            resting=BriefMemory(30),
            walks=BriefMemory(86_400),
        )

    def forget_catalog(self) -> None:
        """It was changed: here the change shows at once, in other processes a moment later."""
        self.offers.forget_all()
        self.workflows.forget_all()

    def close(self) -> None:
        for end in self.before_close:
            end()
        self.later.close()
        self.checks.close()
        self.databases.close()
        self.bell.close()
        self.news.close()
