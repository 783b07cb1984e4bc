"""The anchor of `bench pipeline`: a bare Celery worker whose tasks do nothing.

Settings and pool are those of a GPU worker, events included.
"""

import os
import time
from functools import cache

from celery import Celery
from redis import Redis

QUEUE, NOOP, START, STARTS = "bench-noop", "noop", "start", "bench-noop-starts"

_redis_url = os.environ.get("COMFYFLEET_REDIS_URL", "")
app = Celery("bench_noop", broker=_redis_url, set_as_current=False)
app.conf.update(
    task_default_queue=QUEUE,
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"unacked_key": f"{QUEUE}.unacked"},
)


@cache
def redis() -> Redis:
    return Redis.from_url(_redis_url)


@app.task(name=NOOP)
def noop() -> None:
    """Nothing."""


@app.task(name=START)
def start() -> None:
    """Says when it began."""
    redis().rpush(STARTS, time.time())
