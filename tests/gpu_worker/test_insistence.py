"""How long, and how often, something is tried again."""

import threading
import time

import pytest

from gpu_worker.insistence import Insistence


def test_it_ends_when_its_time_is_over() -> None:
    one = Insistence(seconds=0.3, stop=threading.Event())
    assert one.pause()
    while one.pause():
        pass
    assert not one.pause()


def test_its_time_begins_with_the_first_pause() -> None:
    one = Insistence(seconds=0.1, stop=threading.Event())
    time.sleep(0.15)
    assert one.pause()


def test_no_time_means_no_pause() -> None:
    assert not Insistence(seconds=0, stop=threading.Event()).pause()


def test_a_stop_ends_it_in_the_middle_of_a_pause() -> None:
    stop = threading.Event()
    one = Insistence(seconds=3600, stop=stop)
    assert one.pause()
    threading.Timer(0.05, stop.set).start()
    while one.pause():  # would take an hour otherwise
        pass
    assert not one.pause()


class NotedWaits(threading.Event):
    """Is never set, and notes how long it would have been waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return self.is_set()


def test_pauses_grow_to_a_limit() -> None:
    waits = NotedWaits()
    one = Insistence(seconds=3600, stop=waits)
    assert all(one.pause() for _ in range(8))
    assert waits.seconds == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5])
