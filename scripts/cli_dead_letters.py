"""`comfyfleet dead-letters …`: jobs that were given up, and what becomes of them."""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from scripts.command import Command, clear_errors, open_backend, show, with_json

if TYPE_CHECKING:
    from models.dead_letters import DeadLetter
    from tasks.backend import Backend

HEADINGS = ["id", "status", "fleet", "workflow", "reason", "tries", "since (UTC)", "error"]


@click.group("dead-letters")
def dead_letters() -> None:
    """Jobs that were given up: to be ordered again, or laid to rest."""


@dead_letters.command("list")
@click.option(
    "--status",
    type=click.Choice(["open", "redriven", "discarded", "all"]),
    default="open",
    show_default=True,
)
@click.option("--fleet", help="Only those of the fleet with this slug.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@with_json
@clear_errors
def list_letters(status: str, fleet: str | None, limit: int, as_json: bool) -> None:
    """List dead letters, the newest first."""
    from models.dead_letters import DeadLetter
    from scripts.table import table
    from tasks import dispatch_list
    from webapp.api import admin_dead_letters
    from webapp.shapes import brief

    only = None if status == "all" else status
    with (
        closing(open_backend(pools_may_be_away=True)) as backend,
        backend.databases.central(read_only=True) as session,
    ):
        wanted = dispatch_list.letters_wanted(session, status=only, fleet=fleet)
        newest = wanted.order_by(DeadLetter.created_at.desc(), DeadLetter.id.desc()).limit(limit)
        shown = dispatch_list.letters_shown(session, session.scalars(newest).all())
    rows = [
        [
            one.letter.id,
            one.letter.status,
            one.about.fleet.slug,
            one.about.workflow,
            one.letter.reason,
            one.about.dispatch.attempts,
            one.letter.created_at,
            brief(one.letter.error, 60),
        ]
        for one in shown
    ]
    show(as_json, [admin_dead_letters.shape(one) for one in shown], table(HEADINGS, rows))


@dead_letters.command("show")
@click.argument("letter_id", metavar="ID", type=click.UUID)
@with_json
@clear_errors
def show_letter(letter_id: UUID, as_json: bool) -> None:
    """Show a dead letter: its error, its trace and its tries."""
    from models import dead_letters as kept
    from scripts.table import plain, table
    from tasks import dispatch_list
    from webapp.api import admin_dead_letters
    from webapp.shapes import brief

    with (
        closing(open_backend(pools_may_be_away=True)) as backend,
        backend.databases.central(read_only=True) as session,
    ):
        letter = kept.get(session, letter_id)
        [shown] = dispatch_list.letters_shown(session, [letter])
    facts = admin_dead_letters.shape(shown)
    tries = [
        [t["attempt"], t["worker_id"], t["began_at"], t["ending"], brief(t["error"], 80)]
        for t in facts["history"]
    ]
    told = {k: v for k, v in facts.items() if v is not None and k not in ("history", "trace")}
    show(
        as_json,
        facts,
        [
            *(f"{name:18}{plain(value)}" for name, value in told.items()),
            "",
            table(["try", "worker", "began", "ended by", "error"], tries),
            *(["", plain(letter.trace)] if letter.trace else []),
        ],
    )


def _which(command: Command) -> Command:
    """One by one, or all of a fleet: after an outage there are many."""
    every = click.option("--fleet", help="All open ones of the fleet with this slug.")
    return click.argument("letter_ids", metavar="[ID]...", nargs=-1, type=click.UUID)(
        every(command)
    )


@dead_letters.command()
@_which
@with_json
@clear_errors
def redrive(letter_ids: tuple[UUID, ...], fleet: str | None, as_json: bool) -> None:
    """Order the work of dead letters again, as new jobs at the prices of the old ones.

    Doing it twice makes one new job. A letter that can't be redriven now, because its user
    has too few tokens for example, stays open; the others go on, and the exit code is 2.
    """
    from tasks import redrive as ordering

    def step(backend: "Backend", letter_id: UUID) -> "DeadLetter":
        return ordering.redrive(backend, letter_id, actor="cli")

    _each(letter_ids, fleet, step, as_json=as_json)


@dead_letters.command()
@_which
@click.option("--note", help="Why. Kept in the audit log.")
@with_json
@clear_errors
def discard(
    letter_ids: tuple[UUID, ...], fleet: str | None, note: str | None, as_json: bool
) -> None:
    """Say of dead letters that nothing is to be done."""
    from tasks import redrive as ordering

    def step(backend: "Backend", letter_id: UUID) -> "DeadLetter":
        return ordering.discard(backend, letter_id, actor="cli", note=note)

    _each(letter_ids, fleet, step, as_json=as_json)


def _each(
    letter_ids: Sequence[UUID],
    fleet: str | None,
    step: Callable[["Backend", UUID], "DeadLetter"],
    *,
    as_json: bool,
) -> None:
    if bool(letter_ids) == bool(fleet):
        raise click.UsageError("Name dead letters by their ids, or a fleet with --fleet.")
    with closing(open_backend(pools_may_be_away=True)) as backend:
        wanted = letter_ids or _open_of(backend, str(fleet))
        told = [_one(backend, letter_id, step) for letter_id in wanted]
    show(as_json, told, [_sentence(one) for one in told] or "There are none.")
    sys.exit(2 if any(one["refused"] for one in told) else 0)


def _open_of(backend: "Backend", fleet: str) -> list[UUID]:
    """Who waits longest comes first."""
    from models.dead_letters import DeadLetter
    from tasks import dispatch_list

    with backend.databases.central(read_only=True) as session:
        wanted = dispatch_list.letters_wanted(session, status="open", fleet=fleet)
        found = session.scalars(wanted.order_by(DeadLetter.created_at, DeadLetter.id))
        return [letter.id for letter in found]


def _one(
    backend: "Backend", letter_id: UUID, step: Callable[["Backend", UUID], "DeadLetter"]
) -> dict[str, Any]:
    """One that is refused, or whose pool is away, does not stop the others."""
    from models.errors import DATABASE_AWAY, Refusal

    told: dict[str, Any] = {"id": letter_id, "status": None, "job_id": None, "refused": None}
    try:
        done = step(backend, letter_id)
    except Refusal as refusal:
        return told | {"refused": f"{refusal.code}: {refusal.detail}"}
    except DATABASE_AWAY:
        return told | {"refused": "dependency_unavailable: A database does not answer."}
    return told | {"status": done.status, "job_id": done.redriven_job_id}


def _sentence(told: dict[str, Any]) -> str:
    if told["refused"]:
        return f"{told['id']}: {told['refused']}"
    new = f" as job {told['job_id']}" if told["job_id"] else ""
    return f"{told['id']}: {told['status']}{new}."
