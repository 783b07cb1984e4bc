"""`comfyfleet up`: everything on one machine, until Ctrl-C."""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scripts.command import clear_errors

if TYPE_CHECKING:
    from scripts.log_lines import LogLines
    from scripts.stack import Stack
    from scripts.state_folder import StateFolder
    from scripts.supervisor import StopRequest

ANY_PORT = click.IntRange(0, 65535)


@click.command()
@click.option("--state", default=".state/up", show_default=True, help="Folder of all that is kept.")
@click.option("--port", default=8000, show_default=True, type=ANY_PORT, help="0: a free one.")
@click.option("--comfyui", "comfyui_url", help="URL of your ComfyUI; default: a CPU stand-in.")
@click.option("--gpu-workers", default=1, show_default=True, type=click.IntRange(1, 50))
@click.option("--flower", "with_flower", is_flag=True, help="Flower too, to watch Celery.")
@click.option("--database", "database_url", help="PostgreSQL URL of the central database.")
@click.option("--pool", "pool_url", help="PostgreSQL URL of the tenant pool, with --database.")
@click.option("--redis", "redis_url", help="URL of your Redis 6.2 or newer, or Valkey.")
@click.option("--s3", "storage_url", help="s3://BUCKET[/PREFIX] instead of a folder.")
@click.option("--redis-port", type=ANY_PORT, help="Of our Redis; default: a free one.")
@click.option("--comfyui-port", type=ANY_PORT, help="Of the first stand-in; default: a free one.")
@click.option("--flower-port", type=ANY_PORT, help="Default: a free one.")
@click.option("--verbose", "is_verbose", is_flag=True, help="Every request, and what Celery says.")
@clear_errors
def up(state: str, **options: Any) -> None:
    """Run everything on one machine: API, Redis, control and GPU workers, a ComfyUI.

    Parts that end are started again. Ctrl-C stops all. What is kept, logs included, is in the
    state folder; its ready.json appears when every part answers.
    """
    from scripts.server_process import ServerUnavailable
    from scripts.stack import PortTaken, Wishes
    from scripts.stack_wishes import Unusable
    from scripts.state_folder import FolderInUse, StateFolder
    from scripts.supervisor import PartFailed, StopRequest

    stop_request = StopRequest().install()
    try:
        _run(StateFolder(Path(state)), Wishes(**options), stop_request)
    except (FolderInUse, PortTaken, ServerUnavailable, Unusable) as refused:
        click.secho(str(refused), fg="red", err=True)
        sys.exit(2)
    except PartFailed as failed:
        click.secho(str(failed), fg="red", err=True)
        sys.exit(1)


def _run(state: "StateFolder", wishes: Any, stop_request: "StopRequest") -> None:
    from scripts.stack import Stack, choose_ports
    from scripts.stack_wishes import check

    with state.locked() as lock:
        state.remove_ready()  # a crash may have left one
        ports = choose_ports(wishes)
        check(wishes, state)
        stack = Stack(state=state, wishes=wishes, ports=ports, secrets=state.secrets())
        if not stop_request.is_set:
            _supervise(stack, lock, stop_request)


def _supervise(stack: "Stack", lock: int, stop_request: "StopRequest") -> None:
    from models.session import Databases
    from scripts.log_lines import LogLines
    from scripts.stack_parts import parts_of
    from scripts.stack_seed import prepare
    from scripts.supervisor import Supervisor

    stack.secrets.update(prepare(stack.settings, stack.state))
    stack.state.write_environment(stack.backend_settings())
    stack.state.write_machines(stack.machines_document())
    databases = Databases(stack.settings)
    parts = parts_of(stack, databases)
    log = LogLines(
        stack.state.logs,
        sys.stdout,
        names=[part.name for part in parts],
        is_verbose=stack.wishes.is_verbose,
    )
    supervisor = Supervisor(parts, log, stop_request, keep_open=[lock])
    with closing(log):
        try:
            if supervisor.start():
                databases.close()
                _announce(stack, log)
                supervisor.run()
        finally:
            stack.state.remove_ready()
            log.show("\nStopping ...")
            supervisor.stop()
        log.show("Stopped.")


def _announce(stack: "Stack", log: "LogLines") -> None:
    from scripts.stack_parts import http_answers

    pages = {
        page: address
        for page in ("console", "studio")
        if not http_answers(address := f"{stack.api_url}/{page}", status=404)
    }
    ready = stack.ready_document(console_url=pages.get("console"), studio_url=pages.get("studio"))
    stack.state.write_ready(ready)
    log.show("\n".join(_block(stack, ready)))


def _block(stack: "Stack", ready: dict[str, Any]) -> list[str]:
    own_comfyui = "" if stack.wishes.comfyui_url else "  (the CPU stand-in)"
    demo = ready["demo_user"]
    rows = [
        ("API", f"{ready['api_url']}  (docs at {ready['api_url']}/docs)"),
        ("Console", ready["console_url"]),
        ("Studio", ready["studio_url"]),
        ("Flower", ready["flower_url"]),
        ("ComfyUI", f"{ready['comfyui_url']}{own_comfyui}"),
        ("Demo user", f"{demo['email']}  password {demo['password']}"),
        ("Admin token", f"in {stack.state.ready_file}"),
        ("Logs", f"{stack.state.logs}/"),
    ]
    told = [f"    {name:<12} {value}" for name, value in rows if value]
    return ["", "  comfyfleet is up.", "", *told, "", "  Ctrl-C stops everything.", ""]
