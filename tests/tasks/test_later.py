"""What is done a moment later: all of it, in batches, and one failure stops nothing."""

import os
import socket
import threading
from dataclasses import replace

import pytest
from redis import Redis

from tasks import reports
from tasks.backend import Backend
from tasks.later import Later
from tests.fixtures import make_person
from tests.tasks import gpu, orders


def test_everything_is_done_in_order_and_in_batches() -> None:
    later, batches = Later(), []
    gate = threading.Event()

    def slow(items: list[int]) -> None:
        gate.wait(5)
        batches.append(items)

    for number in range(100):
        later.add(slow, number)
    gate.set()
    later.close()
    assert [number for batch in batches for number in batch] == list(range(100))
    assert len(batches) < 100  # what gathered while the first was under way came together


def test_a_failing_handler_is_reported_and_the_rest_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    later, done = Later(), []

    def broken(_: list[int]) -> None:
        raise RuntimeError("no database")

    later.add(broken, 1)
    later.add(done.extend, 2)
    later.close()
    assert done == [2]
    assert "no database" in caplog.text


def test_more_than_fits_is_dropped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    later, gate, seen = Later(), threading.Event(), []

    def stuck(items: list[int]) -> None:
        gate.wait(10)
        seen.extend(items)

    for number in range(10_600):
        later.add(stuck, number)
    gate.set()
    later.close()
    assert "too much is waiting" in caplog.text
    assert 10_000 <= len(seen) < 10_600


def test_a_forked_child_starts_with_nothing_to_do() -> None:
    later, done = Later(), []
    later.add(done.append, "parent")
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        seen: list[list[str]] = []
        later.add(seen.append, "child")
        later.close()
        os._exit(0 if seen == [["child"]] else 1)
    _, status = os.waitpid(child, 0)
    later.close()
    assert os.waitstatus_to_exitcode(status) == 0
    assert done == [["parent"]]


def test_closing_twice_is_fine() -> None:
    later = Later()
    later.close()
    later.add(list.clear, 1)
    later.close()
    later.close()
    assert later._thread is None


def test_no_ticket_waits_while_the_storage_is_asked_for_outputs(
    demo: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    ada, worker = make_person(demo, tokens=100), gpu.join(demo)
    orders.order(demo, ada)
    lease = gpu.take(demo, worker)
    demo.later.close()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Redis.from_url(demo.settings.redis_url) as redis,
    ):
        silent.settimeout(10)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        other = Backend.open(
            replace(demo.settings, storage_url="s3://bucket", s3_endpoint_url=endpoint)
        )
        redis.flushdb()
        reports.complete(other, worker, lease, outputs=[gpu.IMAGE])
        question, _ = silent.accept()  # it is asked, and does not answer
        other.bell.ring(gpu.FLEET, lease.dispatch_id)
        assert redis.brpop([gpu.FLEET], timeout=2) is not None
        question.close()
    other.close()
