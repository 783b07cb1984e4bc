"""What is done a moment later: all of it, in batches, and one failure stops nothing."""

import os
import threading

import pytest

from tasks.later import Later


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
