"""A GPU machine has what `comfyfleet[worker]` brings, and works with that alone.

What is missing there is computed from the metadata of the packages: everything installed here
that is not needed, directly or in turn, by the extra `worker`.
"""

import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.gpu_worker.small_stack import CODE, await_status, order_card, stack_of_its_own

BARE_MACHINE = Path(__file__).with_name("bare_machine.py")
#: Ours that stay at home, and some of those that would bring a database or a web server along.
AT_HOME = {"models", "tasks", "webapp", "tests"}
HEAVY = {"flask", "sqlalchemy", "psycopg2", "alembic", "PIL", "av", "aiohttp", "flower"}


def needed(name: str, extras: frozenset[str], found: set[tuple[str, frozenset[str]]]) -> None:
    if (name, extras) in found:
        return
    found.add((name, extras))
    for line in metadata.requires(name) or []:
        requirement = Requirement(line)
        marker, environments = requirement.marker, [{"extra": one} for one in ("", *extras)]
        if marker is None or any(marker.evaluate(one) for one in environments):
            needed(canonicalize_name(requirement.name), frozenset(requirement.extras), found)


@cache
def missing() -> frozenset[str]:
    """Modules that are here, and not on a GPU machine."""
    found: set[tuple[str, frozenset[str]]] = set()
    needed("comfyfleet", frozenset({"worker"}), found)
    present = {name for name, _ in found}
    absent = {
        module
        for module, packages in metadata.packages_distributions().items()
        if not present & {canonicalize_name(package) for package in packages}
    }
    return frozenset(absent | AT_HOME)


def on_a_bare_machine(*command: str) -> list[str]:
    return [sys.executable, str(BARE_MACHINE), ",".join(sorted(missing())), *command]


def ran(*command: str, exit_code: int = 0) -> str:
    done = subprocess.run(
        on_a_bare_machine(*command),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(CODE)},
        timeout=60,
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_what_a_worker_needs_is_there_and_no_more() -> None:
    assert missing() >= HEAVY
    assert not missing() & {"celery", "kombu", "redis", "boto3", "requests", "websocket", "click"}


@pytest.mark.parametrize("module", ["gpu_worker.boot", "scripts.cli"])
def test_importing_it_imports_nothing_that_is_missing(module: str) -> None:
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=CODE
    )
    assert set(done.stdout.split()) & (HEAVY | AT_HOME) == set()


def test_the_command_is_there() -> None:
    assert "gpu-worker" in ran("scripts.cli", "--help")
    assert "Work for a fleet" in ran("scripts.cli", "gpu-worker", "--help")


@pytest.mark.parametrize("command", [["gpu_worker"], ["scripts.cli", "gpu-worker"]])
def test_without_settings_it_says_what_it_needs(command: list[str]) -> None:
    assert "COMFYFLEET_BACKEND_URL is not set" in ran(*command, exit_code=2)


@pytest.mark.slow
def test_it_joins_and_finishes_a_job(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = on_a_bare_machine("scripts.cli", "gpu-worker")
    with (
        stack_of_its_own(request, tmp_path_factory) as stack,
        stack.worker("w1", command) as worker,
    ):
        idle_mb = worker.memory_mb
        ada = stack.customer()
        await_status(ada, order_card(ada), "completed")
        with capsys.disabled():
            sys.stdout.write(
                f"\nworker memory: {idle_mb:.0f} MB idle, {worker.memory_mb:.0f} MB after a job\n"
            )
    assert worker.process.returncode == 0
