"""Tickets: real Celery messages, sent by nobody who has to wait."""

import json
import logging
import os
import socket
import threading
import time
from uuid import uuid4

import pytest
from celery import Celery
from redis import Redis

from tasks.later import Later
from tasks.tickets import TASK, Bell

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def make_bell(redis_url: str) -> Bell:
    return Bell(redis_url, Later())


def finish(bell: Bell) -> None:
    """Send what was rung."""
    bell._later.close()
    bell.close()


def take(redis_url: str, fleet: str) -> tuple[str, list[str]]:
    """What a Celery consumer of this queue gets: task name and arguments."""
    celery = Celery("reader", broker=redis_url, set_as_current=False)
    with celery.connection_for_read() as connection, connection.SimpleQueue(fleet) as queue:
        message = queue.get(timeout=5)
        message.ack()
        args, _, _ = message.decode()
        return message.headers["task"], args


def test_a_ticket_is_a_message_that_celery_understands(redis_url: str) -> None:
    bell, dispatch_id = make_bell(redis_url), uuid4()
    bell.ring("fleet-a", dispatch_id)
    finish(bell)
    assert take(redis_url, "fleet-a") == (TASK, [str(dispatch_id)])


@pytest.mark.parametrize("trace", [TRACE, ""], ids=["a trace", "none that is known"])
def test_a_ticket_equals_what_celery_itself_would_send(redis_url: str, trace: str) -> None:
    """Field by field, but for the ids."""
    bell = make_bell(redis_url)
    bell.ring("fleet-a", uuid4(), trace or None)
    finish(bell)
    celery = Celery("comfyfleet", broker=redis_url, set_as_current=False)
    celery.conf.update(task_serializer="json", task_ignore_result=True)
    headers = {"traceparent": trace}
    celery.send_task(TASK, args=[str(uuid4())], queue="fleet-a", headers=headers)
    celery.close()
    with Redis.from_url(redis_url) as redis:
        theirs, ours = (json.loads(raw) for raw in redis.lrange("fleet-a", 0, -1))
    assert shape(ours) == shape(theirs)


def shape(message: dict[str, object]) -> object:
    """Everything but the values of ids."""
    ids = {"id", "root_id", "correlation_id", "delivery_tag", "argsrepr", "body", "origin",
           "reply_to"}  # fmt: skip

    def plain(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {k: plain(v, k) for k, v in value.items()}
        return type(value).__name__ if key in ids else value

    return plain(message)


def test_every_ring_is_sent_from_many_threads(redis_url: str) -> None:
    bell = make_bell(redis_url)
    threads = [
        threading.Thread(target=lambda: [bell.ring("fleet-a", uuid4()) for _ in range(50)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish(bell)
    with Redis.from_url(redis_url) as redis:
        raw = redis.lrange("fleet-a", 0, -1)
    assert len(raw) == len(set(raw)) == 400


def test_a_broker_that_is_down_is_reported_and_nobody_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bell = make_bell("redis://127.0.0.1:1/0")
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            bell.ring("fleet-a", uuid4())
        finish(bell)
    assert "the broker is away" in caplog.text


def test_a_broker_that_hangs_holds_up_nobody() -> None:
    """A server that accepts and never answers: rings go on while the sender waits."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bell = make_bell(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        rung = [bell.ring("fleet-a", uuid4()) for _ in range(1000)]
        assert len(rung) == 1000
        finish(bell)


def test_a_bell_rings_in_a_forked_child_too(redis_url: str) -> None:
    bell = make_bell(redis_url)
    bell.ring("fleet-a", uuid4())
    bell._later.close()  # nobody forks while a thread of theirs is in the middle of sending
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        bell.ring("fleet-a", uuid4())
        finish(bell)
        os._exit(0)
    os.waitpid(child, 0)
    finish(bell)
    with Redis.from_url(redis_url) as redis:
        deadline = time.monotonic() + 5
        while redis.llen("fleet-a") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert redis.llen("fleet-a") == 2
