"""What is done again and again, how often, and why that often. Read by beat."""

from typing import Any

from models.settings import Settings

QUEUE = "control"


def table(settings: Settings) -> dict[str, dict[str, Any]]:
    return {
        # Bounds how long a lost ticket or a crash keeps a job waiting.
        "reconcile": every(settings.reconcile_seconds, "tasks.reconcile"),
        # Nobody waits for what this removes.
        "sweep": every(300, "tasks.sweep"),
    }


def every(seconds: float, task: str) -> dict[str, Any]:
    """One that nobody took before the next is due would only be done twice: it expires."""
    return {
        "task": task,
        "schedule": seconds,
        "options": {"queue": QUEUE, "expires": max(seconds, 10)},
    }
