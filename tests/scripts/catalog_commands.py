"""Commands of `comfyfleet` on a backend of one test, as a person calls them."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner, Result
from sqlalchemy import select

from models.audit import AuditLog
from scripts.cli import main
from tasks.backend import Backend

Run = Callable[..., Result]

SETTINGS = ("central_url", "pool_urls", "redis_url", "storage_url", "secret_key", "fleet_secrets")


def runner(backend: Backend, group: str) -> Run:
    env = {f"COMFYFLEET_{name.upper()}": str(getattr(backend.settings, name)) for name in SETTINGS}

    def run(*arguments: object, exit_code: int = 0, **more: str) -> Result:
        called = [group, *map(str, arguments)]
        done = CliRunner().invoke(main, called, env=env | more)
        assert done.exit_code == exit_code, done.output
        return done

    return run


def told(run: Run, *arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def audited(backend: Backend) -> list[tuple[str, str]]:
    with backend.databases.central(read_only=True) as session:
        rows = session.scalars(select(AuditLog).order_by(AuditLog.at))
        return [(row.event, row.actor) for row in rows]
