"""`comfyfleet spot-drill`: a worker has to go in the middle of a job; what becomes of both?"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scripts.command import clear_errors, show, with_json

if TYPE_CHECKING:
    from scripts.drill import Drill, Step
    from scripts.state_folder import StateFolder


@click.command("spot-drill")
@click.option("--state", default=".state/up", show_default=True, help="Folder of a running stack.")
@with_json
@clear_errors
def spot_drill(state: str, as_json: bool) -> None:
    """Interrupt a worker of a running stack as Spot does, and check that nothing is lost.

    Starts a slow job, sends its worker a Spot notice, and shows with times what happened:
    each line is ok or FAILED. Exit code 1 if any failed, 2 if there is no running stack.
    """
    from requests import RequestException

    from scripts.demo_customer import CallFailed
    from scripts.drill import CannotDrill
    from scripts.state_folder import StateFolder

    folder = StateFolder(Path(state))
    try:
        held = _perform(folder, as_json)
    except (CannotDrill, CallFailed, RequestException) as impossible:
        click.secho(f"The drill can't be held. {impossible}", fg="red", err=True)
        sys.exit(2)
    sys.exit(0 if held else 1)


def _perform(folder: "StateFolder", as_json: bool) -> bool:
    from models.session import Databases
    from models.settings import Settings
    from scripts.demo_customer import Customer
    from scripts.drill import CannotDrill, Drill, top_up

    ready, machines = folder.read_ready(), folder.read_machines()
    if not folder.is_in_use() or ready is None or machines is None:
        raise CannotDrill(f"No stack runs in {folder.path}: start one with `comfyfleet up`.")
    databases = Databases(Settings.from_env(folder.read_environment()))
    try:
        with Customer(ready["api_url"]) as customer:
            user = customer.sign_in(**ready["demo_user"])
            top_up(customer, user["id"], ready)
            drill = Drill(customer, databases, machines)
            drill.order(folder.folder("inputs"))
            return _watch(drill, as_json)
    finally:
        databases.close()


def _watch(drill: "Drill", as_json: bool) -> bool:
    if not as_json:
        click.echo(f"{drill.worker} runs the job {drill.job_id}.")
    drill.notify()
    if not as_json:
        click.echo("A Spot notice was sent to it.\n")
    steps = []
    for step in drill.steps():
        steps.append(step)
        if not as_json:
            click.echo(_line(step))
    failed = [step for step in steps if not step.ok]
    verdict = (
        click.style(f"\n{len(failed)} of {len(steps)} steps failed.", fg="red")
        if failed
        else click.style("\nNothing was lost, and nobody paid twice.", fg="green")
    )
    show(as_json, _document(drill, steps), verdict)
    return not failed


def _line(step: "Step") -> str:
    mark = click.style("ok    ", fg="green") if step.ok else click.style("FAILED", fg="red")
    time = f"{step.seconds:>6.2f} s" if step.seconds is not None else " " * 8
    return f"  {time}  {mark}  {step.sentence}"


def _document(drill: "Drill", steps: "list[Step]") -> dict[str, Any]:
    return {
        "ok": all(step.ok for step in steps),
        "job_id": drill.job_id,
        "worker": drill.worker,
        "replacement": drill.replacement or None,
        "sent_at": drill.sent_at.isoformat(),
        "steps": [vars(step) for step in steps],
    }
