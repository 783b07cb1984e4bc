"""After anything, one run of the control tasks mends what can be mended, and nothing twice."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from tasks import control
from tasks.backend import Backend
from tests.tasks import wreck
from tests.tasks.control_workers import control_workers, until
from tests.tasks.dying import dying
from tests.tasks.snapshots import Snapshot

#: At least so many moments at which each can die, or nothing is tried here.
MOMENTS = {
    "reconcile": 20,
    "sweep": 20,
    "cleanup_workers": 2,
    "expire_media": 15,
    "sweep_leftovers": 8,
}


@pytest.fixture
def house(postgres: Backend) -> Iterator[Backend]:
    backend = Backend.open(replace(postgres.settings, max_active_jobs=1000, reconcile_seconds=1))
    yield backend
    backend.close()


@pytest.mark.parametrize("age", [timedelta(hours=1), wreck.A_MONTH], ids=["an hour", "a month"])
def test_after_a_time_without_beat(house: Backend, age: timedelta) -> None:
    made = wreck.make(house, age=age)
    wreck.run_all(house)
    made.check()
    wreck.run_all(house)
    made.check()
    made.check_storage()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", MOMENTS)
def test_one_that_dies_at_any_moment_is_made_good_by_the_next_run(
    house: Backend, tmp_path: Path, task: str
) -> None:
    made = wreck.make(house)
    if task == "sweep_leftovers":  # most of what it removes is left by jobs that end now
        wreck.run_all(house)
        wreck.pass_time(house, wreck.A_MONTH)
    with closing(Snapshot(house, tmp_path)) as snapshot, dying(house) as child:
        for moment in count(1):
            died = child.run(task, moment)
            made.check_money()
            wreck.run_all(house, only=MOMENTS)
            made.check()
            if not died:
                break
            snapshot.restore()
        assert moment > MOMENTS[task]
    made.check_storage()


def is_all_done(house: Backend) -> bool:
    seen = control.status(house.databases, house.settings)
    return not any(one["is_late"] for one in seen)


@pytest.mark.timeout(300)
def test_two_control_workers_with_two_beats(house: Backend, tmp_path: Path) -> None:
    """All begin at once on the same wreck, and go on side by side."""
    made = wreck.make(house)
    with control_workers(house, tmp_path, "one", "two") as workers:
        until("every task finished", lambda: is_all_done(house), *workers)
        until("both go on", lambda: all(one.count("tasks.reconcile") > 2 for one in workers))
    made.check()


@pytest.mark.timeout(300)
def test_a_control_worker_that_is_killed_in_the_middle(house: Backend, tmp_path: Path) -> None:
    """kill -9 of the whole process while all its threads work; then another one."""
    made = wreck.make(house)
    with control_workers(house, tmp_path, "first") as [first]:
        until("it has begun", lambda: "tasks.reconcile" in first.said(), first)
        first.kill()
    made.check_money()
    with control_workers(house, tmp_path, "second") as [second]:
        until("every task finished", lambda: is_all_done(house), second)
        until("what it found first is done", lambda: second.count("tasks.reconcile") > 1, second)
    made.check()
