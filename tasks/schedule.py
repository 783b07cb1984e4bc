"""What is done again and again, how often, and why that often: one line for each control task."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from celery.schedules import crontab

from models.settings import Settings
from tasks import (
    cleanup,
    expiry,
    leftovers,
    metrics,
    reconcile,
    sweepers,
    wallet_watch,
    webhook_courier,
)
from tasks.backend import Backend
from tasks.tickets import CONTROL_QUEUE

LATE_SECONDS = 60  # what a run may be late by, beside another period, before somebody should look


@dataclass(frozen=True)
class ControlTask:
    """`run_once` does it and returns a dataclass of what it did: numbers, by name."""

    name: str
    seconds: float
    run_once: Callable[[Backend], Any]
    is_on_the_minute: bool = False  # by the clock: a period of 60 s would drift across minutes

    @property
    def celery_name(self) -> str:
        return f"tasks.{self.name}"

    @property
    def patience(self) -> timedelta:
        """It is late when it last finished longer ago than this."""
        return timedelta(seconds=2 * self.seconds + LATE_SECONDS)


def control_tasks(settings: Settings) -> list[ControlTask]:
    return [
        # Bounds how long a lost ticket or a crash keeps a job waiting.
        ControlTask("reconcile", settings.reconcile_seconds, reconcile.run_once),
        # Each minute has its figures: what scales fleets looks at minutes.
        ControlTask("publish_metrics", 60, metrics.run_once, is_on_the_minute=True),
        # Bounds how late a retry is, and how late the first try is if the call for it got lost.
        ControlTask("deliver_webhooks", settings.webhook_poll_seconds, webhook_courier.run_once),
        # Nobody minds being told a minute later.
        ControlTask("watch_wallets", settings.wallet_low_seconds, wallet_watch.run_once),
        # Nobody waits for what this removes.
        ControlTask("sweep", 300, sweepers.run_once),
        # Nobody waits for this either: a place in the fleet is free long before.
        ControlTask("cleanup_workers", 900, cleanup.run_once),
        # Media is kept for days, and leftovers are looked at hours later.
        ControlTask("expire_media", 3600, expiry.run_once),
        ControlTask("sweep_leftovers", 3600, leftovers.run_once),
    ]


def table(settings: Settings) -> dict[str, dict[str, Any]]:
    """For beat. A message that nobody took before the next is due expires: once is enough."""
    return {
        task.name: {
            "task": task.celery_name,
            "schedule": crontab() if task.is_on_the_minute else task.seconds,
            "options": {"queue": CONTROL_QUEUE, "expires": max(task.seconds, 10)},
        }
        for task in control_tasks(settings)
    }
