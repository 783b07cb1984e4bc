"""`comfyfleet control …`: what the control worker does, by hand."""

import sys
from typing import Any

import click

from scripts.command import clear_errors, open_backend, show, with_json


@click.group()
def control() -> None:
    """What the control worker does again and again."""


@control.command()
@click.argument("name")
@with_json
@clear_errors
def run(name: str, as_json: bool) -> None:
    """Run the control task NAME now, and say what it did.

    Safe while the control worker does the same. `comfyfleet control status` lists the names.
    Exit code 1 if something could not be done; the next run tries that again.
    """
    from tasks import control as runs
    from tasks.schedule import control_tasks

    backend = open_backend(pools_may_be_away=True)
    try:
        known = {task.name: task for task in control_tasks(backend.settings)}
        if name not in known:
            raise click.UsageError(f"There is no task {name!r}. Known: {', '.join(known)}.")
        done = runs.run(backend, known[name]) or {}
    finally:
        backend.close()
    show(as_json, done, f"{name}: {runs.in_words(done)}")
    sys.exit(1 if "trouble" in done else 0)


@control.command()
@with_json
@clear_errors
def status(as_json: bool) -> None:
    """List the control tasks: when each last finished, and what it did then.

    Late is what finished longer ago than two of its periods and a minute, or never: then no
    control worker runs, or no beat, or the task can't be done. Exit code 1 if one is late.
    """
    from scripts.table import table
    from tasks import control as runs

    backend = open_backend(pools_may_be_away=True)
    try:
        found = runs.status(backend.databases, backend.settings)
    finally:
        backend.close()
    headings = ["task", "every s", "last finished (UTC)", "late", "did"]
    show(as_json, found, table(headings, [_row(one) for one in found]))
    sys.exit(1 if any(one["is_late"] for one in found) else 0)


def _row(seen: dict[str, Any]) -> list[object]:
    from tasks.control import in_words

    return [
        seen["task"],
        seen["every_seconds"],
        seen["finished_at"],
        seen["is_late"],
        in_words(seen["done"]) if seen["finished_at"] else None,
    ]
