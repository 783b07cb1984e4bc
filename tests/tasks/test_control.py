"""Control tasks note what they did; one that takes long does not pile up."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from models import control_turns
from models.base import utcnow
from tasks import control, schedule
from tasks.backend import Backend
from tasks.schedule import ControlTask
from tests.tasks import away


@dataclass
class Done:
    things: int = 0


def task_of(backend: Backend, name: str) -> ControlTask:
    return next(one for one in schedule.control_tasks(backend.settings) if one.name == name)


def test_every_task_notes_when_it_last_finished(demo: Backend) -> None:
    before = control.status(demo.databases, demo.settings)
    assert all(one["is_late"] and one["finished_at"] is None for one in before)
    for task in schedule.control_tasks(demo.settings):
        assert control.run(demo, task) is not None
    after = control.status(demo.databases, demo.settings)
    assert [one["task"] for one in after] == [one["task"] for one in before]
    assert not any(one["is_late"] or "trouble" in one["done"] for one in after)


def test_a_beat_that_died_an_hour_ago_is_seen(demo: Backend) -> None:
    for task in schedule.control_tasks(demo.settings):
        control.run(demo, task)
    in_an_hour = utcnow() + timedelta(hours=1)
    seen = control.status(demo.databases, demo.settings, now=in_an_hour)
    often = {one["task"] for one in seen if one["every_seconds"] < 1700}
    assert {"reconcile", "sweep"} <= often
    assert often == {one["task"] for one in seen if one["is_late"]}


def test_a_task_that_takes_longer_than_its_period_does_not_pile_up(backend: Backend) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def take_long(_: Backend) -> Done:
        begun.set()
        assert go_on.wait(30)
        return Done(things=1)

    long, other = ControlTask("long", 1, take_long), ControlTask("other", 1, lambda _: Done())
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(control.run, backend, long)
        assert begun.wait(30)
        assert control.run(backend, long) is None
        assert control.run(backend, other) == {"things": 0}
        go_on.set()
        assert running.result(30) == {"things": 1}
    assert control.run(backend, long) == {"things": 1}


def test_what_could_not_be_done_is_noted_beside_what_was(demo: Backend) -> None:
    other = Backend.open(replace(demo.settings, **away.pools(demo, "main")))
    done = control.run(other, task_of(other, "reconcile"))
    other.close()
    assert done is not None
    assert "the pool main" in done["trouble"]
    with demo.databases.central(read_only=True) as session:
        [turn] = control_turns.all_turns(session)
    assert turn.done == done
    assert "trouble (the pool main" in control.in_words(done)


def test_a_task_that_breaks_is_not_noted_and_may_run_again(backend: Backend) -> None:
    def fall(_: Backend) -> Done:
        raise RuntimeError("broken")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            control.run(backend, ControlTask("broken", 1, fall))
    with backend.databases.central(read_only=True) as session:
        assert control_turns.all_turns(session) == []
