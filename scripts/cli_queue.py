"""`comfyfleet queue`: what waits for each fleet, and what comes first."""

from contextlib import closing
from typing import TYPE_CHECKING
from uuid import UUID

import click

from scripts.command import clear_errors, open_backend, show, with_json

if TYPE_CHECKING:
    from models.dispatches import Dispatch

HEADINGS = ["fleet", "waiting", "oldest", "running", "workers", "could take", "dead letters"]


@click.group(invoke_without_command=True)
@click.pass_context
@with_json
@clear_errors
def queue(context: click.Context, as_json: bool) -> None:
    """Show what waits for each fleet of this stage, for how long, and who works on it.

    ID is a job's id, or that of its dispatch.
    """
    if context.invoked_subcommand is not None:
        return
    from models import fleet_figures
    from models.base import utcnow
    from scripts.table import table

    with closing(open_backend(pools_may_be_away=True)) as backend:
        stage = backend.settings.stage
        with backend.databases.central(read_only=True) as session:
            fleets = fleet_figures.of_stage(session, stage=stage, now=utcnow())
    rows = [
        [
            one.slug if one.is_active else f"{one.slug} (off)",
            one.waiting,
            _age(one.oldest_waiting_seconds) if one.waiting else None,
            one.running,
            one.active_workers,
            one.available_capacity,
            one.dead_letters_open,
        ]
        for one in fleets
    ]
    show(as_json, [vars(one) for one in fleets], table(HEADINGS, rows))


def _age(seconds: float) -> str:
    """As a person says it: 42 s, 7 min, 3 h 12 min."""
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@queue.command()
@click.argument("any_id", metavar="ID", type=click.UUID)
@with_json
@clear_errors
def front(any_id: UUID, as_json: bool) -> None:
    """Put a job that waits ahead of everything that waits for its fleet."""
    from tasks import dispatch_list, interventions

    with closing(open_backend(pools_may_be_away=True)) as backend:
        found = dispatch_list.find(backend, any_id)
        _tell(as_json, interventions.front(backend, found.id, actor="cli"))


# A number below zero is no option.
@queue.command(context_settings={"ignore_unknown_options": True})
@click.argument("any_id", metavar="ID", type=click.UUID)
@click.argument("priority", type=int)
@with_json
@clear_errors
def priority(any_id: UUID, priority: int, as_json: bool) -> None:
    """Give a job that waits another PRIORITY. Orders have 0; higher is first."""
    from models.errors import InvalidInput
    from models.lanes import PRIORITY_LIMIT
    from tasks import dispatch_list, interventions

    if abs(priority) > PRIORITY_LIMIT:
        limits = f"between -{PRIORITY_LIMIT} and {PRIORITY_LIMIT}"
        raise InvalidInput.field("priority", f"Must be {limits}.")
    with closing(open_backend(pools_may_be_away=True)) as backend:
        found = dispatch_list.find(backend, any_id)
        done = interventions.set_priority(backend, found.id, priority=priority, actor="cli")
        _tell(as_json, done)


def _tell(as_json: bool, done: "Dispatch") -> None:
    told = {"job_id": done.tenant_job_id, "dispatch_id": done.id, "priority": done.priority}
    show(as_json, told, f"The job {done.tenant_job_id} waits with priority {done.priority}.")
