"""`comfyfleet workers …`."""

from typing import TYPE_CHECKING, Any

import click

from scripts.command import clear_errors, opened_backend, show, with_json
from scripts.table import table

if TYPE_CHECKING:
    from models.workers import Worker
    from tasks.backend import Backend

MOST = 1000
HEADINGS = ["worker", "fleet", "status", "let in", "draining", "load", "works on", "seen (UTC)"]


@click.group()
def workers() -> None:
    """GPU workers: see them, drain them, lock them out."""


@workers.command("list")
@click.option("--fleet", help="Only those of this fleet.")
@click.option("--stage", help="Of the fleets; default: COMFYFLEET_STAGE.")
@click.option("--present", is_flag=True, help="Without those that are gone.")
@with_json
@clear_errors
def list_workers(fleet: str | None, stage: str | None, present: bool, as_json: bool) -> None:
    """List workers, those last heard of first, with the jobs that each of them works on.

    Gone is who was not heard of for COMFYFLEET_WORKER_GONE_SECONDS. Who is not approved was
    locked out.
    """
    from models import enlisted
    from models.workers import Worker
    from tasks.worker_list import workers_shown

    with opened_backend() as backend:
        query = enlisted.everybody(stage=stage or backend.settings.stage, fleet=fleet)
        with backend.databases.central(read_only=True) as session:
            found = session.scalars(query.order_by(Worker.last_seen_at.desc()).limit(MOST)).all()
            shown = workers_shown(backend, session, found)
    told = [one.told() for one in shown if one.is_present or not present]
    show(as_json, told, table(HEADINGS, [_row(one) for one in told]))


def _row(told: dict[str, Any]) -> list[object]:
    jobs = [f"{held['job_id']} {held['progress']:.0%}" for held in told["holds"]]
    return [
        told["worker_id"],
        told["fleet"],
        told["status"],
        told["is_approved"],
        told["is_draining"],
        told["current_load"],
        ", ".join(jobs) or None,
        told["last_seen_at"],
    ]


@workers.command()
@click.argument("name")
@with_json
@clear_errors
def drain(name: str, as_json: bool) -> None:
    """Have the worker NAME take no more jobs. It finishes the one it has, and stays."""
    from tasks import worker_orders

    with opened_backend() as backend:
        worker = worker_orders.drain(backend, name, actor="cli")
        _tell(backend, worker, as_json, "takes no more jobs.")


@workers.command()
@click.argument("name")
@with_json
@clear_errors
def undrain(name: str, as_json: bool) -> None:
    """Have the worker NAME take jobs again."""
    from tasks import worker_orders

    with opened_backend() as backend:
        worker = worker_orders.drain(backend, name, draining=False, actor="cli")
        _tell(backend, worker, as_json, "takes jobs again.")


@workers.command()
@click.argument("name")
@with_json
@clear_errors
def revoke(name: str, as_json: bool) -> None:
    """Lock the worker NAME out: its token is refused, and so is its name when it registers.

    What it works on is given to others. `comfyfleet workers approve` lets it in again.
    """
    from tasks import worker_orders

    with opened_backend() as backend:
        worker = worker_orders.revoke(backend, name, actor="cli")
        _tell(backend, worker, as_json, "is locked out.")


@workers.command()
@click.argument("name")
@with_json
@clear_errors
def approve(name: str, as_json: bool) -> None:
    """Let the worker NAME in again after it was locked out, with the token it had."""
    from tasks import worker_orders

    with opened_backend() as backend:
        worker = worker_orders.approve(backend, name, actor="cli")
        _tell(backend, worker, as_json, "is let in.")


@workers.command("rotate-token")
@click.argument("name")
@with_json
@clear_errors
def rotate_token(name: str, as_json: bool) -> None:
    """Give the worker NAME a new token and print it, this once. The old one is refused from now.

    Write it into the file `token` in the worker's state folder, within the length of a lease:
    then the worker goes on with its job.
    """
    from tasks import worker_orders

    with opened_backend() as backend:
        worker, token = worker_orders.rotate_token(backend, name, actor="cli")
    show(as_json, {"worker_id": worker.worker_id, "token": token}, token)


def _tell(backend: "Backend", worker: "Worker", as_json: bool, sentence: str) -> None:
    from tasks.worker_list import workers_shown

    with backend.databases.central(read_only=True) as session:
        [shown] = workers_shown(backend, session, [worker])
    show(as_json, shown.told(), f"{worker.worker_id} {sentence}")
