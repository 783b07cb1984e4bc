"""What every command of `comfyfleet` has in common: `--json`, clear errors, exit codes."""

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from models.errors import Refusal
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
            message = "\n".join([f"{refusal.code}: {refusal.detail}", *_faults(refusal)])
        except (BadSetting, SchemaNotCurrent) as error:
            message = str(error)
        except DBAPIError as error:
            message = f"The database does not answer: {str(error.orig).strip()}"
        click.secho(message, fg="red", err=True)
        sys.exit(2)

    return run  # type: ignore[return-value]


def _faults(refusal: "Refusal") -> list[str]:
    """A line for each field at fault, unless the sentence is about the only one."""
    faults = [f"{field}: {' '.join(said)}" for field, said in (refusal.errors or {}).items()]
    return [] if faults == [refusal.detail] else [f"  {fault}" for fault in faults]


@contextmanager
def opened_backend() -> Iterator["Backend"]:
    """Closed at the end: what may be done a moment later, as ringing, is done by then."""
    backend = open_backend()
    try:
        yield backend
    finally:
        backend.close()


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
        click.echo(json.dumps(document, indent=2, default=_plain))
    else:
        for sentence in [sentences] if isinstance(sentences, str) else sentences:
            click.echo(sentence)


def _plain(value: Any) -> str:
    """Times as the API writes them."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value)
