"""A provider that is unwell closes the door, and opens it when it is well."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_worker.door import DRAINING, Door
from gpu_worker.health import HealthWatch
from gpu_worker.provider import OutputFile, Progress, Unwell, Work
from tests.gpu_worker.cached import wait_for


class Patient:
    """A provider that is as well as the test wants it."""

    name = "small"

    def __init__(self, trouble: Exception | None = None) -> None:
        self.trouble = trouble
        self.looks = 0

    def take_over(self, folder: Path) -> None:
        raise NotImplementedError("Only its health is looked at.")

    def close(self) -> None:
        raise NotImplementedError("Only its health is looked at.")

    def check(self) -> None:
        self.looks += 1
        if self.trouble:
            raise self.trouble

    def run(self, work: Work, *, progress: Progress, stop: threading.Event) -> list[OutputFile]:
        raise NotImplementedError("Only its health is looked at.")


@contextmanager
def watched(
    door: Door, *patients: Patient, is_busy: Callable[[], bool] = lambda: False
) -> Iterator[HealthWatch]:
    watch = HealthWatch(patients, door, is_busy=is_busy, well_seconds=0.02, unwell_seconds=0.02)
    watch.start()
    yield watch
    watch.close()
    watch._thread.join(10)
    assert not watch._thread.is_alive()


@pytest.fixture
def door() -> Door:
    return Door("cards")


@pytest.mark.parametrize("trouble", [Unwell("It hangs."), ValueError("a bug")])
def test_the_door_follows_the_provider(door: Door, trouble: Exception) -> None:
    patient = Patient()
    with watched(door, patient):
        wait_for(lambda: patient.looks > 1)
        assert door.is_open
        for _ in range(2):
            patient.trouble = trouble
            wait_for(lambda: not door.is_open)
            patient.trouble = None
            wait_for(lambda: door.is_open)


def test_one_of_several_is_enough(door: Door) -> None:
    with watched(door, Patient(), Patient(Unwell("It hangs."))):
        wait_for(lambda: not door.is_open)


def test_trouble_is_told_once(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    patient = Patient(Unwell("It hangs."))
    with watched(door, patient):
        wait_for(lambda: patient.looks > 3)
        patient.trouble = None
        wait_for(lambda: door.is_open)
    told = [record.getMessage() for record in caplog.records if record.name == "gpu_worker.health"]
    assert told == ["Unwell: It hangs.", "Well again."]


def test_nobody_looks_while_a_job_runs(door: Door) -> None:
    asked = threading.Semaphore(0)

    def is_busy() -> bool:
        asked.release()
        return True

    patient = Patient(Unwell("Busy, and so it looks unwell."))
    with watched(door, patient, is_busy=is_busy):
        for _ in range(5):
            assert asked.acquire(timeout=10)
    assert patient.looks == 0
    assert door.is_open


def test_what_a_job_found_counts_at_once(door: Door) -> None:
    patient = Patient()
    watch = HealthWatch([patient], door, is_busy=lambda: False)
    watch.report(Unwell("It went away."))
    assert not door.is_open
    watch.start()  # looks at once, not in ten seconds: it was told of trouble
    wait_for(lambda: door.is_open, seconds=5)
    watch.close()


def test_being_well_does_not_open_a_door_closed_for_another_reason(door: Door) -> None:
    door.close(DRAINING)
    patient = Patient()
    with watched(door, patient) as watch:
        watch.report(Unwell("It went away."))
        wait_for(lambda: patient.looks > 1)
        assert not door.is_open
        door.open(DRAINING)
        wait_for(lambda: door.is_open)
