"""Beat dies alone: its control worker does not go on as if nothing had happened."""

import os
import signal
from pathlib import Path

import pytest

from tasks.backend import Backend
from tests.tasks.control_workers import ControlWorker, control_worker, until


def beats(worker: ControlWorker) -> list[int]:
    """Its only child."""
    pid = worker.process.pid
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_a_control_worker_ends_with_its_beat(sqlite: Backend, tmp_path: Path) -> None:
    with control_worker(sqlite, tmp_path, "c1") as worker:
        until("beat is there", lambda: beats(worker), worker)
        [beat] = beats(worker)
        os.kill(beat, signal.SIGKILL)
        assert worker.process.wait(60) == 0
        assert "Beat has ended" in worker.said()


@pytest.mark.slow
def test_a_control_worker_that_is_stopped_says_nothing_of_beat(
    sqlite: Backend, tmp_path: Path
) -> None:
    with control_worker(sqlite, tmp_path, "c1") as worker:
        until("beat is there", lambda: beats(worker), worker)
        worker.process.terminate()
        assert worker.process.wait(60) == 0
        assert "Beat has ended" not in worker.said()
