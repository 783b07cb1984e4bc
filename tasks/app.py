"""The Celery app of the control worker: `celery -A tasks.app worker`, and beat.

Each task is a thin shell around a `run_once` that says what it did. Nothing here is the only
one of its kind: two control workers, or two beats, do everything twice and nothing wrong.
"""

import logging
import ssl
import warnings
from dataclasses import asdict
from functools import cache
from typing import Any

from celery import Celery, signals
from celery.exceptions import SecurityWarning
from celery.worker.control import inspect_command

from models import migrate
from models.settings import Settings
from tasks import reconcile as reconciler
from tasks import schedule, sweepers
from tasks.backend import Backend

logger = logging.getLogger(__name__)

# Of running as root, as in a container. It is about pickles, and we take none.
warnings.simplefilter("ignore", SecurityWarning)

settings = Settings.from_env()
app = Celery("comfyfleet", broker=settings.redis_url)
app.conf.update(
    task_default_queue=schedule.QUEUE,
    task_serializer="json",
    accept_content=["json"],
    event_serializer="json",
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "visibility_timeout": 600,
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
        "socket_keepalive": True,
        "health_check_interval": 10,
    },
    beat_schedule=schedule.table(settings),
)
if settings.redis_url.startswith("rediss:"):
    # Left to itself Kombu would speak to anybody; what the address says goes first.
    app.conf.broker_use_ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}


@cache
def backend() -> Backend:
    """Opened by the first task, in the process that runs it."""
    opened = Backend.open(settings)
    migrate.require_current(opened.databases, settings)
    return opened


@signals.worker_shutdown.connect
def _close(**_: Any) -> None:
    if backend.cache_info().currsize:
        backend().close()


@inspect_command(name="current_job")
def _current_job(_state: Any, **_: Any) -> dict[str, Any]:
    """For GPU workers, who know it too. Without it here `celery inspect` would not send it."""
    return {"job_id": None}


@app.task(name="tasks.reconcile")
def reconcile() -> dict[str, int]:
    return _said("reconciled", asdict(reconciler.run_once(backend())))


@app.task(name="tasks.sweep")
def sweep() -> dict[str, int]:
    return _said("swept", asdict(sweepers.run_once(backend())))


def _said(what: str, done: dict[str, int]) -> dict[str, int]:
    if any(done.values()):
        logger.info("%s: %s", what, ", ".join(f"{k} {v}" for k, v in done.items() if v))
    return done
