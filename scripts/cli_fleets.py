"""`comfyfleet fleets …`."""

import secrets
from pathlib import Path
from typing import Any

import click

from scripts.command import clear_errors, open_backend, show, with_json


@click.group()
def fleets() -> None:
    """Fleets of GPU workers."""


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
