"""The watch for notices: each kind is seen and passed on once, and nothing odd ends the watch."""

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpu_worker.imds import Imds
from gpu_worker.spot import SpotMonitor
from scripts.imds_instance import NOTICES
from scripts.imds_stand_in import ImdsStandIn
from scripts.server_process import free_port
from tests.gpu_worker.file_server import file_server, whole

SOON = 0.05


@pytest.fixture
def stand_in() -> Iterator[ImdsStandIn]:
    with ImdsStandIn() as started:
        yield started


class Heard:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.something = threading.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self.something.set()


@contextmanager
def watching(url: str, heard: Heard) -> Iterator[SpotMonitor]:
    imds = Imds(url, timeout_seconds=0.3)
    monitor = SpotMonitor(imds, every_seconds=SOON, on_notice=heard)
    monitor.start()
    yield monitor
    monitor.close()


def look(url: str) -> str | None:
    imds = Imds(url, timeout_seconds=0.3)
    return SpotMonitor(imds, every_seconds=SOON, on_notice=Heard()).look()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What it finds so deep in a recursion could not even be reported."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("spot", "spot interruption: terminate at 20"),
        ("rebalance", "rebalance recommendation"),
        ("scale-in", "scale-in"),
    ],
)
def test_a_notice_of_each_kind_is_passed_on_once(
    stand_in: ImdsStandIn, kind: str, reason: str
) -> None:
    heard = Heard()
    with watching(stand_in.url("i-1"), heard) as monitor:
        assert not heard.something.wait(4 * SOON)
        stand_in.notify("i-1", kind)
        assert heard.something.wait(10)
        monitor._thread.join(10)
    assert len(heard.reasons) == 1
    assert heard.reasons[0].startswith(reason)


def test_the_most_pressing_notice_gives_the_reason(stand_in: ImdsStandIn) -> None:
    stand_in.notify_rebalance("i-1")
    stand_in.notify_spot("i-1")
    assert str(look(stand_in.url("i-1"))).startswith("spot interruption")


def test_an_exact_reason(stand_in: ImdsStandIn) -> None:
    notice = '{"action": "stop", "time": "2026-11-18T08:22:00Z"}'
    stand_in.set("i-1", NOTICES["spot"], notice)
    reason = look(stand_in.url("i-1"))
    assert reason == "spot interruption: stop at 2026-11-18T08:22:00+00:00"


@pytest.mark.parametrize("state", ["InService", "Standby", "Warmed:Stopped", "", "terminated?"])
def test_another_lifecycle_state_is_no_notice(stand_in: ImdsStandIn, state: str) -> None:
    stand_in.set("i-1", NOTICES["scale-in"], state)
    assert look(stand_in.url("i-1")) is None


@pytest.mark.parametrize("kind", ["spot", "rebalance"])
@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "<html>Sign in to the network</html>",
        "[]",
        "null",
        "{}",
        '{"action": "terminate"}',
        '{"action": 7, "time": "2026-11-18T08:22:00Z"}',
        '{"action": "terminate", "time": "tomorrow"}',
        '{"noticeTime": {}}',
        "[" * 30_000,
        "\x00\ufffd",
    ],
)
@pytest.mark.usefixtures("no_collector")
def test_garbage_is_no_notice_and_does_not_end_the_watch(
    stand_in: ImdsStandIn, kind: str, garbage: str
) -> None:
    stand_in.set("i-1", NOTICES[kind], garbage)
    heard = Heard()
    with watching(stand_in.url("i-1"), heard):
        assert not heard.something.wait(2 * SOON)
        stand_in.notify("i-1", kind)
        assert heard.something.wait(10)


def test_a_service_that_comes_back_is_heard() -> None:
    port, heard = free_port(), Heard()
    with watching(f"http://127.0.0.1:{port}/i/i-1/", heard):
        assert not heard.something.wait(0.5)
        with ImdsStandIn(port) as stand_in:
            stand_in.notify_spot("i-1")
            assert heard.something.wait(20)


def test_a_trouble_is_logged_once(stand_in: ImdsStandIn, caplog: pytest.LogCaptureFixture) -> None:
    stand_in.set("i-1", NOTICES["spot"], "garbage")
    imds = Imds(stand_in.url("i-1"))
    monitor = SpotMonitor(imds, every_seconds=SOON, on_notice=Heard())
    with caplog.at_level(logging.WARNING, logger="gpu_worker.spot"):
        for _ in range(5):
            assert monitor.look() is None
        assert len(caplog.records) == 1
        stand_in.set("i-1", NOTICES["spot"], '{"action": "terminate"}')  # another trouble
        for _ in range(5):
            assert monitor.look() is None
    assert len(caplog.records) == 2


def test_one_silent_path_does_not_hide_another() -> None:
    with file_server() as server:
        server.put("/latest/api/token", whole(b"a-token"))
        server.put(f"/latest/meta-data/{NOTICES['spot']}", server.mute())
        server.put(f"/latest/meta-data/{NOTICES['scale-in']}", whole(b"Terminated"))
        assert look(f"http://127.0.0.1:{server.port}/") == "scale-in"


def test_it_may_be_closed_by_the_one_who_is_told(stand_in: ImdsStandIn) -> None:
    told = threading.Event()

    def close(_: str) -> None:
        monitor.close()
        told.set()

    monitor = SpotMonitor(Imds(stand_in.url("i-1")), every_seconds=SOON, on_notice=close)
    stand_in.notify_spot("i-1")
    monitor.start()
    assert told.wait(10)


def test_after_close_nothing_is_passed_on(stand_in: ImdsStandIn) -> None:
    heard = Heard()
    with watching(stand_in.url("i-1"), heard) as monitor:
        pass
    stand_in.notify_spot("i-1")
    monitor._thread.join(10)
    assert heard.reasons == []


def test_a_service_without_tokens_does_not_end_the_watch() -> None:
    with file_server() as server:
        server.put("/latest/api/token", whole(b""))
        assert look(f"http://127.0.0.1:{server.port}/") is None


def test_a_service_that_is_away_is_logged_once_for_all_it_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="gpu_worker.spot"):
        assert look(f"http://127.0.0.1:{free_port()}/") is None
    assert len(caplog.records) == 1
