"""`comfyfleet effects …`, `fleets …` and `workers …`: what an administrator does at a terminal."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from models.base import utcnow
from models.effects import Provider
from models.workers import Worker
from scripts import cli_effects
from tasks.backend import Backend
from tests.fixtures import MakePerson
from tests.scripts.catalog_commands import Run, audited, runner, told
from tests.tasks import gpu, orders


@pytest.fixture
def backend(sqlite: Backend) -> Backend:
    return sqlite


@pytest.fixture
def effects(demo: Backend) -> Run:
    return runner(demo, "effects")


@pytest.fixture
def fleets(demo: Backend) -> Run:
    return runner(demo, "fleets")


@pytest.fixture
def workers(demo: Backend) -> Run:
    return runner(demo, "workers")


# Effects


def test_an_effect_is_made_changed_and_listed(effects: Run, demo: Backend) -> None:
    given = ["--workflow", "image-scale", "--cost", 3, "--override", "width=64"]
    done = effects("create", "tiny", *given, "--override", "method=area", "--name", "Tiny")
    assert done.stdout == "The effect tiny is new; it costs 3 tokens.\n"
    done = effects("set", "tiny", "--cost", 0, "--override", "height=32", "--off")
    assert done.stdout.endswith("it costs 0 tokens. Nobody can order it: It is switched off.\n")
    [tiny] = [one for one in told(effects, "list") if one["slug"] == "tiny"]
    assert (tiny["credits_cost"], tiny["overrides"], tiny["name"]) == (0, {"height": 32}, "Tiny")
    assert effects("set", "tiny", "--on", "--no-overrides").exit_code == 0
    assert audited(demo) == [("effect.create", "cli"), *[("effect.change", "cli")] * 2]
    heading, *rows = effects("list").stdout.splitlines()
    assert heading.split()[:4] == ["effect", "name", "tokens", "workflow"]
    assert len(rows) == 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "e", "--workflow", "nothing", "--cost", 1], "There is no workflow 'nothing'."),
        (["create", "e", "--workflow", "image-blur", "--cost", -1], "from 0 to 1000000"),
        (["create", "e", "--workflow", "image-blur", "--cost", 10**7], "from 0 to 1000000"),
        (["create", "E!", "--workflow", "image-blur", "--cost", 1], "slug: Takes"),
        (["create", "image-blur", "--workflow", "image-blur", "--cost", 1], "slug_taken"),
        (["set", "image-blur", "--override", "radius=99"], "Must be at most 31."),
        (["set", "image-blur", "--override", "radius"], "NAME=VALUE"),
        (["set", "image-blur", "--override", "a=1", "--no-overrides"], "contradict"),
        (["set", "image-blur", "--name", " "], "name: Takes 1 to 200 characters."),
        (["set", "image-blur"], "Say what to change"),
        (["set", "nothing", "--cost", 1], "There is no effect 'nothing'."),
    ],
)
def test_what_makes_no_effect_is_refused(effects: Run, arguments: list[str], said: str) -> None:
    assert said in effects(*arguments, exit_code=2).stderr


def test_the_providers_are_those_of_effects() -> None:
    assert [*cli_effects.PROVIDER.choices] == [*Provider]


# Fleets


def test_a_fleet_is_made_changed_mapped_and_listed(fleets: Run, demo: Backend) -> None:
    done = fleets("create", "video", "--max-workers", 2, "--bundle", "wan")
    assert done.stdout == "The fleet video (stage dev) is new; it runs nothing.\n"
    fleets("map", "video", "video-invert")
    done = fleets("map", "video", "image-blur", "--add")
    assert "(stage dev) is mapped; it runs image-blur, video-invert." in done.stdout
    fleets("set", "video", "--max-workers", 5, "--bundle", "", "--off")
    [video] = [one for one in told(fleets, "list") if one["slug"] == "video"]
    assert (video["max_workers"], video["bundle"], video["is_active"]) == (5, None, False)
    assert video["workflows"] == ["image-blur", "video-invert"]
    assert "it runs nothing." in fleets("map", "video", "--none").stdout
    row = fleets("list").stdout.splitlines()[2].split()
    assert row == ["video", "video", "no", "0", "5", "-", "-"]
    assert fleets("list", "--stage", "staging").stdout == "Nothing to show.\n"
    events = ["fleet.create", "fleet.map", "fleet.map", "fleet.change", "fleet.map"]
    assert audited(demo) == [(event, "cli") for event in events]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "control"], "can't be the name of a fleet"),
        (["create", "GPU"], "slug: Takes at most 63"),
        (["create", "f", "--stage", "A stage"], "stage: Takes"),
        (["create", "f", "--max-workers", -1], "from 0 to 10000"),
        (["create", "gpu-default"], "slug_taken"),
        (["set", "gpu-default"], "Say what to change"),
        (["set", "nothing", "--max-workers", 1], "There is no fleet 'nothing'"),
        (["set", "gpu-default", "--max-workers", 10**9], "from 0 to 10000"),
        (["map", "gpu-default"], "say --none"),
        (["map", "gpu-default", "--none", "image-blur"], "say --none"),
        (["map", "gpu-default", "nothing"], "There is no workflow 'nothing'."),
        (["map", "nothing", "--none"], "There is no fleet 'nothing'"),
    ],
)
def test_what_makes_no_fleet_is_refused(fleets: Run, arguments: list[str], said: str) -> None:
    assert said in fleets(*arguments, exit_code=2).stderr


def test_a_workflow_with_jobs_is_not_taken_away(
    fleets: Run, demo: Backend, person: MakePerson
) -> None:
    orders.order(demo, person(tokens=10))
    refused = fleets("map", "gpu-default", "--none", exit_code=2).stderr
    assert "colour-card (1)" in refused


# Workers


def test_workers_are_listed_with_what_they_do(
    workers: Run, demo: Backend, person: MakePerson
) -> None:
    assert workers("list").stdout == "Nothing to show.\n"
    job = orders.order(demo, person(tokens=10))
    gpu.take(demo, gpu.join(demo, "i-busy"))
    gpu.join(demo, "i-gone")
    with demo.databases.central() as session:
        long_ago = utcnow() - timedelta(hours=1)
        gone = update(Worker).where(Worker.worker_id == "i-gone")
        session.execute(gone.values(last_seen_at=long_ago))
    busy, gone_one = told(workers, "list")
    assert (busy["worker_id"], busy["status"]) == ("i-busy", "present")
    assert [held["job_id"] for held in busy["holds"]] == [str(job.id)]
    assert (gone_one["worker_id"], gone_one["status"]) == ("i-gone", "gone")
    assert len(told(workers, "list", "--present")) == 1
    assert told(workers, "list", "--fleet", "other") == []
    assert told(workers, "list", "--stage", "staging") == []
    assert f"{job.id} 0%" in workers("list").stdout


def test_workers_are_ordered_about(workers: Run, demo: Backend) -> None:
    old = gpu.register(demo, "i-1")
    assert workers("drain", "i-1").stdout == "i-1 takes no more jobs.\n"
    assert told(workers, "undrain", "i-1")["is_draining"] is False
    assert workers("revoke", "i-1").stdout == "i-1 is locked out.\n"
    assert told(workers, "approve", "i-1")["is_approved"] is True
    token = workers("rotate-token", "i-1").stdout.strip()
    assert len(token) == 64
    assert token != old
    assert gpu.identify(demo, token).worker_id == "i-1"
    orders_given = ["drain", "undrain", "revoke", "approve", "rotate_token"]
    events = [event for event in audited(demo) if event[1] == "cli"]
    assert events == [(f"worker.{order}", "cli") for order in orders_given]


@pytest.mark.parametrize("order", ["drain", "undrain", "revoke", "approve", "rotate-token"])
def test_who_is_not_there_is_told(workers: Run, order: str) -> None:
    assert "There is no worker 'i-2'." in workers(order, "i-2", exit_code=2).stderr
