"""The Celery side of a worker: one queue, one ticket at a time, and a stop that is heard.

A ticket says that a job waits. Which one is decided by the webapp at the moment of the poll,
so a ticket too many, or delivered twice, finds nothing and does no harm. After a job the
worker asks once more before it goes back to Redis, so a busy fleet never waits for tickets.
"""

import logging
import ssl
from typing import Any

import celery.apps.worker
from celery import Celery, bootsteps, signals
from celery.worker.control import control_command, inspect_command

from gpu_worker import job, logs, spans
from gpu_worker.backend import Refused, Unreachable
from gpu_worker.door import Door
from gpu_worker.insistence import Insistence
from gpu_worker.job import Tools
from gpu_worker.stopping import Stopping

logger = logging.getLogger(__name__)

TASK = "gpu_worker.run"
JOBS_PER_TICKET = 20  # then back to Celery, so that its events show what goes on
POLL_SECONDS = 30.0  # how long a poll is repeated while the webapp is away

# A ticket that is held longer is delivered again: whoever takes it asks for a job, and finds
# one or none. The lease brings jobs back, not this.
_VISIBILITY_SECONDS = 7200


def make_app(redis_url: str, queue: str) -> Celery:
    app = Celery("gpu_worker", broker=redis_url)
    app.conf.update(
        broker_transport="gpu_worker.transport:Transport",
        task_default_queue=queue,
        task_create_missing_queues=False,
        task_queues={queue: {"exchange": "", "routing_key": queue}},
        task_serializer="json",
        accept_content=["json"],
        event_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": _VISIBILITY_SECONDS,
            "socket_timeout": 5,
            "socket_connect_timeout": 2,
            "socket_keepalive": True,
            "health_check_interval": 10,
            # Of this fleet alone, so that its Redis user needs no others.
            "unacked_key": f"{queue}.unacked",
            "unacked_index_key": f"{queue}.unacked_index",
            "unacked_mutex_key": f"{queue}.unacked_mutex",
            "priority_steps": [0],  # one list in Redis; which job is best is the webapp's to say
        },
    )
    if redis_url.startswith("rediss:"):
        # Kombu would not know from our transport's name that this means TLS. What the
        # address says itself (?ssl_ca_certs=...) goes first.
        app.conf.broker_use_ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    return app


def _leave_logs_alone(**_: Any) -> None:
    """Logs are set up already (boot.py). With a receiver, Celery does not do it again."""
    # What it prints when it is told to stop.
    celery.apps.worker.safe_say = logs.say_at_once  # type: ignore[attr-defined]


class Tickets:
    """What is done with a ticket."""

    def __init__(self, tools: Tools, door: Door, stopping: Stopping) -> None:
        self._tools, self._door, self._stopping = tools, door, stopping

    def take(self, traceparent: str = "") -> list[str]:
        """Run what waits; returns how each job ended, for Flower and `celery events`.

        The trace is that of the job the ticket was rung for; the job that comes has its own.
        """
        ran: list[str] = []
        while len(ran) < JOBS_PER_TICKET and self._door.is_open:
            lease = self._poll(traceparent if not ran else "")
            if lease is None:
                break
            work = spans.span("job", within=lease.trace, job_id=lease.job_id)
            with logs.about(**lease.ids), work:
                ran.append(f"{lease.job_id} {job.run(self._tools, lease)}")
        return ran

    def _poll(self, traceparent: str) -> Any:
        insistence = Insistence(seconds=POLL_SECONDS, stop=self._stopping.began)
        while True:
            try:
                return self._tools.backend.poll(traceparent)
            except Refused as refused:
                logger.error("The webapp refuses this worker: %s", refused)
                self._tools.keeper.nudge()  # it finds out what that means
                return None
            except Unreachable as away:
                logger.warning("The webapp is away: %s", away)
                if not insistence.pause():
                    return None


def install(app: Celery, tickets: Tickets, tools: Tools, door: Door, stopping: Stopping) -> None:
    """Put the task, the signals and the steps into the app."""

    @app.task(name=TASK, bind=True)
    def run(task: Any, *_names: Any, **_more: Any) -> list[str]:
        """A ticket names the dispatch it was rung for; the webapp decides which job it is."""
        return tickets.take(str(getattr(task.request, "traceparent", None) or ""))

    @inspect_command(name="current_job")
    def current_job(_state: Any, **_: Any) -> dict[str, Any]:
        held = tools.keeper.held
        if held is None:
            return {"job_id": None}
        lease = held.lease
        return {
            "job_id": lease.job_id,
            "dispatch_id": lease.dispatch_id,
            "attempt": lease.attempt,
            "progress": round(held.share, 3),
            "node": held.node,
        }

    @control_command(name="nudge")
    def nudge(_state: Any, **_: Any) -> dict[str, str]:
        """The webapp has news (a cancel, a drain): ask for it now."""
        tools.keeper.nudge()
        return {"ok": "asking the webapp"}

    # Strong references: Celery's signals hold their receivers by weak ones.
    signals.setup_logging.connect(_leave_logs_alone)
    signals.worker_ready.connect(lambda sender, **_: door.use(sender), weak=False)
    signals.worker_shutting_down.connect(lambda **_: stopping.begin(), weak=False)

    class StopIsHeard(bootsteps.StartStopStep):
        """`control shutdown` and Flower's button send no signal, but close the steps."""

        requires = ("celery.worker.components:Pool",)

        def close(self, _worker: Any) -> None:
            stopping.begin("shut down by an operator")

    app.steps["worker"].add(StopIsHeard)


def start(app: Celery, *, queue: str, worker_id: str) -> int:
    """Work until stopped; the exit code. The node's name is part of what its ACL allows."""
    worker = app.Worker(
        hostname=f"gpu@{queue}.{worker_id}",
        pool="threads",
        concurrency=1,
        queues=[queue],
        without_gossip=True,
        without_mingle=True,
        task_events=True,
        loglevel="INFO",
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)
