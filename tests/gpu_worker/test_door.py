"""The door: any reason closes it, and Celery's consumer is asked on its own thread."""

import threading
from collections.abc import Iterator

import pytest
from celery import Celery
from kombu.asynchronous import Hub

from gpu_worker.app import make_app
from gpu_worker.door import DRAINING, STOPPING, UNWELL, Door


class Consumer:
    """What the door needs of Celery's consumer, on a real event loop that the test turns."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.hub = Hub()
        self.told: list[tuple[str, str]] = []
        self.threads: set[int] = set()

    def cancel_task_queue(self, queue: str) -> None:
        self._note("cancel", queue)

    def add_task_queue(self, queue: str) -> None:
        self._note("add", queue)

    def _note(self, order: str, queue: str) -> None:
        self.told.append((order, queue))
        self.threads.add(threading.get_ident())

    def heard(self) -> list[str]:
        """Turn the loop; what it was told since the last time."""
        self.told.clear()
        self.hub.call_soon(lambda: None)  # so that it does not wait for anything
        self.hub.run_once()
        assert all(queue == "cards" for _, queue in self.told)
        return [order for order, _ in self.told]


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    with make_app("memory://", "cards") as app:
        consumer = Consumer(app)
        yield consumer
        consumer.hub.close()


@pytest.fixture
def door() -> Door:
    return Door("cards")


def test_it_is_open_without_a_reason(door: Door, consumer: Consumer) -> None:
    door.use(consumer)
    assert door.is_open
    assert consumer.heard() == []


def test_a_reason_closes_it_once(door: Door, consumer: Consumer) -> None:
    door.use(consumer)
    for _ in range(2):
        door.close(DRAINING)
    assert not door.is_open
    assert consumer.heard() == ["cancel"]


def test_reasons_add_up(door: Door, consumer: Consumer) -> None:
    door.use(consumer)
    for reason in (DRAINING, UNWELL, STOPPING):
        door.close(reason)
    assert consumer.heard() == ["cancel"]
    door.open(UNWELL)
    door.open(DRAINING)
    assert not door.is_open
    assert consumer.heard() == []
    door.open(STOPPING)
    assert door.is_open
    assert consumer.heard() == ["add"]


def test_a_reason_that_was_none_opens_nothing(door: Door, consumer: Consumer) -> None:
    door.use(consumer)
    door.open(UNWELL)
    assert consumer.heard() == []
    door.close(DRAINING)
    door.open(UNWELL)
    assert not door.is_open


def test_a_door_closed_before_celery_is_ready_is_closed_then(
    door: Door, consumer: Consumer
) -> None:
    door.close(UNWELL)
    door.use(consumer)
    assert consumer.heard() == ["cancel"]


def test_a_door_opened_before_celery_is_ready_is_open(door: Door, consumer: Consumer) -> None:
    door.close(UNWELL)
    door.open(UNWELL)
    door.use(consumer)
    assert consumer.heard() == []


def test_a_consumer_that_comes_back_learns_that_it_is_closed(
    door: Door, consumer: Consumer
) -> None:
    door.use(consumer)
    door.close(DRAINING)
    assert consumer.heard() == ["cancel"]
    door.use(consumer)
    assert consumer.heard() == ["cancel"]


def test_an_opened_queue_is_selected_again(door: Door, consumer: Consumer) -> None:
    """Or a consumer that connects again would leave it out."""
    door.use(consumer)
    queues = consumer.app.amqp.queues
    door.close(DRAINING)
    queues.deselect("cards")  # as Celery does when it cancels
    assert "cards" not in queues.consume_from
    door.open(DRAINING)
    consumer.heard()
    assert "cards" in queues.consume_from


def test_the_consumer_is_touched_on_its_own_thread_only(door: Door, consumer: Consumer) -> None:
    door.use(consumer)
    other = threading.Thread(target=door.close, args=(DRAINING,))
    other.start()
    other.join()
    assert consumer.told == []
    assert consumer.heard() == ["cancel"]
    assert consumer.threads == {threading.get_ident()}


def test_a_signal_that_comes_while_it_is_used_does_not_hang(door: Door, consumer: Consumer) -> None:
    """A signal's code runs on the main thread, also in the middle of the door's own."""

    class Signalled(Consumer):
        def signal_comes(self, *_: object) -> None:
            door.close(STOPPING)

    signalled = Signalled(consumer.app)
    signalled.hub.call_soon = signalled.signal_comes  # type: ignore[method-assign]
    door.close(DRAINING)
    used = threading.Thread(target=door.use, args=(signalled,), daemon=True)
    used.start()
    used.join(10)
    signalled.hub.close()
    assert not used.is_alive()
