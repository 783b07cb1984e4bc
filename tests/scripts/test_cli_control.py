"""`comfyfleet control …` does by hand what the control worker does."""

import json
from dataclasses import replace

import pytest
from redis import Redis

from tasks import control, schedule
from tasks.backend import Backend
from tests.fixtures import make_person
from tests.scripts.test_cli import Run, runner
from tests.tasks import away, orders


@pytest.fixture
def run(demo: Backend) -> Run:
    return runner(demo.settings)


def test_a_task_is_run_now_and_says_what_it_did(run: Run, demo: Backend) -> None:
    orders.order(demo, make_person(demo, tokens=100))
    demo.later.close()
    with Redis.from_url(demo.settings.redis_url) as redis:
        redis.flushdb()
    assert run("control", "run", "reconcile").stdout == "reconcile: tickets rung 1\n"
    told = json.loads(run("control", "run", "sweep", "--json").stdout)
    assert told["objects_deleted"] == 0
    assert run("control", "run", "sweep").stdout == "sweep: nothing to do\n"


def test_what_could_not_be_done_is_said_and_the_rest_is_done(demo: Backend) -> None:
    run = runner(replace(demo.settings, **away.pools(demo, "second")))
    said = run("control", "run", "reconcile", exit_code=1).stdout
    assert said.startswith("reconcile: ")
    assert "trouble (the pool second" in said


def test_a_name_that_nobody_knows(run: Run) -> None:
    said = run("control", "run", "dance", exit_code=2).stderr
    assert "There is no task 'dance'. Known: reconcile, " in said


def test_the_status_tells_what_is_late(run: Run, demo: Backend) -> None:
    lines = run("control", "status", exit_code=1).stdout.splitlines()
    assert lines[0].split() == ["task", "every", "s", "last", "finished", "(UTC)", "late", "did"]
    assert len(lines) == 1 + len(schedule.control_tasks(demo.settings))
    assert all(line.split()[2:] == ["-", "yes", "-"] for line in lines[1:])
    for task in schedule.control_tasks(demo.settings):
        control.run(demo, task)
    told = json.loads(run("control", "status", "--json").stdout)
    assert [one["is_late"] for one in told] == [False] * len(told)
    assert " no  " in run("control", "status").stdout
