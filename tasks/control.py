"""A run of a control task, whoever asks for it: beat, or a person at a terminal.

A process does each of them once at a time, so that one that takes longer than its period does
not pile up, and each notes when it last finished: that is how a beat or a control worker that
died is seen. Two processes may well do the same at once.
"""

import logging
import threading
from dataclasses import asdict
from datetime import datetime
from typing import Any

from models import control_turns
from models.base import utcnow
from models.session import Databases
from models.settings import Settings
from tasks import steps
from tasks.backend import Backend
from tasks.schedule import ControlTask, control_tasks

logger = logging.getLogger(__name__)

_at_work: dict[str, threading.Lock] = {}


def run(backend: Backend, task: ControlTask) -> dict[str, Any] | None:
    """What it did; None if this process is still at it."""
    lock = _at_work.setdefault(task.name, threading.Lock())
    if not lock.acquire(blocking=False):
        logger.warning("%s takes longer than its %g s.", task.name, task.seconds)
        return None
    try:
        with steps.under_way(backend.settings.control_step_seconds) as current:
            done: dict[str, Any] = asdict(task.run_once(backend))
        if current.trouble:
            done["trouble"] = current.trouble
        with backend.databases.central() as session:
            control_turns.finish(session, task.name, done=done)
    finally:
        lock.release()
    if any(done.values()):
        logger.info("%s: %s", task.name, in_words(done))
    return done


def in_words(done: dict[str, Any]) -> str:
    """The names of what was done, as in `healed 2, moved 1`."""
    told = [f"{what.replace('_', ' ')} {_number(much)}" for what, much in done.items() if much]
    return ", ".join(told) or "nothing to do"


def _number(much: Any) -> str:
    return f"({'; '.join(much)})" if isinstance(much, list) else f"{much:g}"


def status(
    databases: Databases, settings: Settings, *, now: datetime | None = None
) -> list[dict[str, Any]]:
    """Each control task: when it last finished, what it did then, and whether it is late."""
    now = now or utcnow()
    with databases.central(read_only=True) as session:
        turns = {turn.name: turn for turn in control_turns.all_turns(session)}
    return [_seen(task, turns.get(task.name), now) for task in control_tasks(settings)]


def _seen(
    task: ControlTask, turn: control_turns.ControlTurn | None, now: datetime
) -> dict[str, Any]:
    finished_at = turn.finished_at if turn else None
    return {
        "task": task.name,
        "every_seconds": task.seconds,
        "finished_at": finished_at,
        "is_late": finished_at is None or finished_at < now - task.patience,
        "done": turn.done if turn else {},
    }
