"""The Celery app of the control worker: `celery -A tasks.app worker`, and beat.

Each task is a thin shell around a `run_once` (control.py); which there are, and how often, is told
in schedule.py. Nothing here is the only one of its kind: two control workers, or two beats, do
everything twice and nothing wrong.
"""

import ssl
import threading
import warnings
from functools import cache
from typing import Any

import celery.apps.worker
from celery import Celery, signals
from celery.exceptions import SecurityWarning
from celery.worker.control import inspect_command

from models import impatience, logs, migrate, spans, traces
from models.log_secrets import keep_secret
from models.settings import Settings
from tasks import control, schedule, tracing
from tasks.backend import Backend
from tasks.beat_watch import BeatWatch
from tasks.schedule import ControlTask
from tasks.tickets import CALL_COURIER, CONTROL_QUEUE
from tasks.webhook_courier import courier_of

# Of running as root, as in a container. It is about pickles, and we take none.
warnings.simplefilter("ignore", SecurityWarning)

settings = Settings.from_env()
app = Celery("comfyfleet", broker=settings.redis_url)
app.conf.update(
    task_default_queue=CONTROL_QUEUE,
    task_serializer="json",
    accept_content=["json"],
    event_serializer="json",
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_concurrency=len(schedule.control_tasks(settings)),  # none waits for another
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


tracing.install()
_opening = threading.Lock()


def backend() -> Backend:
    """Opened by the first task, in the process that runs it."""
    with _opening:
        return _opened()


@cache
def _opened() -> Backend:
    opened = Backend.open(settings)
    try:
        migrate.require_current(opened.databases, settings, pools_may_be_away=True)
    except BaseException:
        opened.close()
        raise
    return opened


@signals.setup_logging.connect
def _start_logs(**_: Any) -> None:
    """Of the worker, and of a beat by itself. With this, Celery leaves logging to us."""
    logs.start(settings.log_format, settings.log_level)
    keep_secret(*settings.secrets)
    # What it prints when it is told to stop.
    celery.apps.worker.safe_say = logs.say_at_once  # type: ignore[attr-defined]
    spans.say_obstacle()


@signals.task_prerun.connect
def _begin_task(task_id: str, task: Any, **_: Any) -> None:
    logs.begin(task=task.name, task_id=task_id)
    traces.begin(getattr(task.request, "traceparent", None))


@signals.task_postrun.connect
def _end_task(**_: Any) -> None:
    logs.end()
    traces.end()


@signals.worker_init.connect
def _be_impatient(**_: Any) -> None:
    impatience.wait_at_most(settings.control_patience_seconds)


@signals.worker_ready.connect
def _begin_at_once(**_: Any) -> None:
    """Beat would begin with waiting: what was missed while nobody ran is done now."""
    for entry in app.conf.beat_schedule.values():
        app.send_task(entry["task"], **entry["options"])


@signals.worker_shutdown.connect
def _close(**_: Any) -> None:
    if _opened.cache_info().currsize:
        _opened().close()


@inspect_command(name="current_job")
def _current_job(_state: Any, **_: Any) -> dict[str, Any]:
    """For GPU workers, who know it too. Without it here `celery inspect` would not send it."""
    return {"job_id": None}


@app.task(name=CALL_COURIER)
def call_courier() -> None:
    """Something is due now. It is sent by threads of the courier's own: nobody waits here."""
    courier_of(backend()).call()


def _register(task: ControlTask) -> None:
    @app.task(name=task.celery_name)
    def run() -> dict[str, Any] | None:
        return control.run(backend(), task)


app.steps["worker"].add(BeatWatch)

for _task in schedule.control_tasks(settings):
    _register(_task)
