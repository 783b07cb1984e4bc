"""`comfyfleet fleets …`."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scripts.command import clear_errors, open_backend, opened_backend, show, with_json
from scripts.table import table

if TYPE_CHECKING:
    from models.fleets import Fleet
    from tasks.backend import Backend

HEADINGS = ["fleet", "name", "on", "workers", "at most", "bundle", "workflows"]
STAGE = "Of the fleet; default: COMFYFLEET_STAGE."


@click.group()
def fleets() -> None:
    """Fleets of GPU workers, and which workflows they run."""


@fleets.command("list")
@click.option("--stage", help="Of the fleets; default: COMFYFLEET_STAGE.")
@with_json
@clear_errors
def list_fleets(stage: str | None, as_json: bool) -> None:
    """List the fleets of a stage: workers that are there, and the workflows they run."""
    from models.fleets import Fleet, of_stage
    from tasks.catalog_view import fleets_shown

    with opened_backend() as backend, backend.databases.central(read_only=True) as session:
        query = of_stage(stage or backend.settings.stage).order_by(Fleet.slug)
        told = [one.told() for one in fleets_shown(backend, session, session.scalars(query).all())]
    show(as_json, told, table(HEADINGS, [_row(one) for one in told]))


def _row(told: dict[str, Any]) -> list[object]:
    names = ("slug", "name", "is_active", "workers_present", "max_workers", "bundle")
    return [*(told[name] for name in names), ", ".join(told["workflows"]) or None]


@fleets.command()
@click.argument("slug")
@click.option("--stage", help=STAGE)
@click.option("--name", help="For people; default: the slug.")
@click.option("--max-workers", type=int, default=50, show_default=True, help="Workers at once.")
@click.option("--bundle", help="The set of models its machines carry.")
@with_json
@clear_errors
def create(slug: str, stage: str | None, as_json: bool, **given: Any) -> None:
    """Make a fleet SLUG. Workers may join it at once; `fleets map` says what it runs."""
    from tasks import fleet_setup

    with opened_backend() as backend:
        stage = stage or backend.settings.stage
        fleet = fleet_setup.create(backend, stage=stage, slug=slug, actor="cli", **given)
        _tell(backend, fleet, as_json, "is new")


@fleets.command("set")
@click.argument("slug")
@click.option("--stage", help=STAGE)
@click.option("--name", help="For people.")
@click.option("--max-workers", type=int, help="Workers at once. Nobody is sent away.")
@click.option("--bundle", help="The set of models its machines carry; empty: none.")
@click.option(
    "--on/--off",
    "is_active",
    default=None,
    help="Off: no more orders, and no more workers. What waits is still worked on.",
)
@with_json
@clear_errors
def set_fleet(slug: str, stage: str | None, as_json: bool, **given: Any) -> None:
    """Change the fleet SLUG."""
    from tasks import fleet_setup

    wanted = {name: value for name, value in given.items() if value is not None}
    if not wanted:
        raise click.UsageError("Say what to change; --help lists what can be.")
    if wanted.get("bundle") == "":
        wanted["bundle"] = None
    with opened_backend() as backend:
        stage = stage or backend.settings.stage
        fleet = fleet_setup.change(backend, stage=stage, slug=slug, actor="cli", **wanted)
        _tell(backend, fleet, as_json, "is changed")


@fleets.command("map")
@click.argument("slug")
@click.argument("workflows", nargs=-1)
@click.option("--stage", help=STAGE)
@click.option("--add", is_flag=True, help="Beside those it runs already.")
@click.option("--none", "nothing", is_flag=True, help="Run no workflow at all.")
@with_json
@clear_errors
def map_workflows(
    slug: str,
    workflows: tuple[str, ...],
    stage: str | None,
    add: bool,
    nothing: bool,
    as_json: bool,
) -> None:
    """Have the fleet SLUG run these WORKFLOWS, and no others.

    A workflow runs on one fleet of a stage: one that ran elsewhere moves here, with the jobs that
    wait for it. One that is left out runs nowhere any more, which is refused while it has jobs.
    """
    from tasks import fleet_setup

    if bool(workflows) == nothing:
        raise click.UsageError("Name the workflows it shall run, or say --none.")
    with opened_backend() as backend:
        stage = stage or backend.settings.stage
        wanted = [*workflows, *(_mapped(backend, stage, slug) if add else [])]
        fleet = fleet_setup.run_workflows(
            backend, stage=stage, slug=slug, wanted=wanted, actor="cli"
        )
        _tell(backend, fleet, as_json, "is mapped")


def _mapped(backend: "Backend", stage: str, slug: str) -> list[str]:
    from models import fleets as known

    with backend.databases.central(read_only=True) as session:
        fleet = known.get(session, stage=stage, slug=slug)
        return [name for _, name in known.workflows_of(session, [fleet.id])[fleet.id]]


def _tell(backend: "Backend", fleet: "Fleet", as_json: bool, what: str) -> None:
    from tasks.catalog_view import fleets_shown

    with backend.databases.central(read_only=True) as session:
        [shown] = fleets_shown(backend, session, [fleet])
    runs = ", ".join(shown.workflows) or "nothing"
    sentence = f"The fleet {fleet.slug} (stage {fleet.stage}) {what}; it runs {runs}."
    show(as_json, shown.told(), sentence)


@fleets.command("redis-acl")
@click.argument("slug")
@click.option("--stage", help="Of the fleet; default: COMFYFLEET_STAGE.")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Holds the user's password on its first line; default: one is drawn and printed.",
)
@click.option(
    "--no-password", is_flag=True, help="No word on the password: the user keeps the one it has."
)
@click.option("--file-format", is_flag=True, help="A line of users.acl instead of a command.")
@with_json
@clear_errors
def redis_acl(slug: str, stage: str | None, file_format: bool, as_json: bool, **given: Any) -> None:
    """Print the Redis user that confines the workers of fleet SLUG to their own keys.

    The rules go to standard output, to be piped into redis-cli; what to do next goes to
    standard error. They hold a hash of the password, never the password. Redis 7 or Valkey.
    """
    from models import fleets as known
    from tasks import redis_acl

    password, is_drawn = _password(**given)
    backend = open_backend()
    stage, broker = stage or backend.settings.stage, backend.settings.redis_url
    try:
        with backend.databases.central(read_only=True) as session:
            known.get(session, stage=stage, slug=slug)
    finally:
        backend.close()
    user = redis_acl.FleetUser(slug, database=redis_acl.database_of(broker))
    shown = password if password and is_drawn else "PASSWORD"
    address = redis_acl.worker_url(broker, user.name, shown)
    line = user.file_line(password) if file_format else user.set_user(password)
    told = {"user": user.name, "stage": stage, "line": line, "rules": user.rules()}
    secret = {"password": password if is_drawn else None, "redis_url": address}
    show(as_json, told | secret, line)
    if not as_json:
        click.echo(_next_step(slug, stage, address, is_drawn), err=True)


def _password(password_file: Path | None, no_password: bool) -> tuple[str | None, bool]:
    """The password, and whether it was drawn."""
    if password_file and no_password:
        raise click.UsageError("--password-file and --no-password contradict each other.")
    if no_password:
        return None, False
    if password_file is None:
        return secrets.token_urlsafe(32), True
    first = password_file.read_text().partition("\n")[0].strip()
    if not first:
        raise click.UsageError(f"{password_file} holds no password on its first line.")
    return first, False


def _next_step(slug: str, stage: str, address: str, is_drawn: bool) -> str:
    once = " The password is shown this once." if is_drawn else ""
    return (
        f"Give that line to redis-cli, or with --file-format to the file of `aclfile`. Then start\n"
        f"the workers of fleet {slug} (stage {stage}) with\n\n  COMFYFLEET_REDIS_URL={address}\n\n"
        f"where host and port are as the workers see them.{once}"
    )
