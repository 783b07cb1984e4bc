"""What every command of `comfyfleet` has in common: `--json`, clear errors, exit codes."""

import functools
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tasks.backend import Backend

Command = TypeVar("Command", bound=Callable[..., Any])


def with_json(command: Command) -> Command:
    """`--json`: one JSON document instead of sentences."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def clear_errors(command: Command) -> Command:
    """Turn what we expect to go wrong into one clear line, and exit with 2."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        from sqlalchemy.exc import DBAPIError

        from models.errors import Refusal
        from models.migrate import SchemaNotCurrent
        from models.settings import BadSetting

        try:
            return command(*args, **kwargs)
        except Refusal as refusal:
            message = f"{refusal.code}: {refusal.detail}"
        except (BadSetting, SchemaNotCurrent) as error:
            message = str(error)
        except DBAPIError as error:
            message = f"The database does not answer: {str(error.orig).strip()}"
        click.secho(message, fg="red", err=True)
        sys.exit(2)

    return run  # type: ignore[return-value]


def open_backend(*, pools_may_be_away: bool = False) -> "Backend":
    """What the environment describes, if its databases have the schema of this code."""
    from models import migrate
    from models.settings import Settings
    from tasks.backend import Backend

    settings = Settings.from_env()
    backend = Backend.open(settings)
    migrate.require_current(backend.databases, settings, pools_may_be_away=pools_may_be_away)
    return backend


def show(as_json: bool, document: Any, sentences: str | list[str]) -> None:
    if as_json:
        click.echo(json.dumps(document, indent=2, default=str))
    else:
        for sentence in [sentences] if isinstance(sentences, str) else sentences:
            click.echo(sentence)
