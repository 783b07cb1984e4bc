"""`comfyfleet jobs …`: the jobs of all tenants, as the queue knows them."""

from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from scripts.command import clear_errors, open_backend, show, with_json

if TYPE_CHECKING:
    from models.audit import AuditLog
    from models.dispatches import Dispatch
    from tasks.backend import Backend

STATES = ["queued", "leased", "completed", "failed", "cancelled"]
HEADINGS = ["job", "status", "fleet", "workflow", "prio", "tries", "worker", "ordered (UTC)"]


@click.group()
def jobs() -> None:
    """Jobs of all tenants. ID is a job's id, or that of its dispatch."""


@jobs.command("list")
@click.option("--status", type=click.Choice(STATES), help="Only those.")
@click.option("--fleet", help="Only those of the fleet with this slug.")
@click.option("--user", "email", metavar="EMAIL", help="Only those of this user.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@with_json
@clear_errors
def list_jobs(
    status: str | None, fleet: str | None, email: str | None, limit: int, as_json: bool
) -> None:
    """List jobs, the newest first."""
    from models.dispatches import Dispatch
    from scripts.table import table
    from tasks import dispatch_list
    from webapp.api import admin_dispatches

    with closing(open_backend(pools_may_be_away=True)) as backend:
        tenant_id = _tenant_of(backend, email) if email else None
        with backend.databases.central(read_only=True) as session:
            wanted = dispatch_list.dispatches_wanted(
                session, status=status, fleet=fleet, tenant_id=tenant_id
            )
            newest = wanted.order_by(Dispatch.created_at.desc(), Dispatch.id.desc()).limit(limit)
            shown = dispatch_list.dispatches_shown(session, session.scalars(newest).all())
    rows = [_row(one.dispatch, one.fleet.slug, one.workflow) for one in shown]
    show(as_json, [admin_dispatches.shape(one) for one in shown], table(HEADINGS, rows))


def _tenant_of(backend: "Backend", email: str) -> UUID:
    """Who registers gets a tenant of their own."""
    from models import users
    from models.errors import NotFound

    with backend.databases.central(read_only=True) as session:
        user = users.find_by_email(session, email)
    if user is None:
        raise NotFound(f"Nobody is registered as {email}.")
    return user.tenant_id


def _row(dispatch: "Dispatch", fleet: str, workflow: str) -> list[object]:
    return [
        dispatch.tenant_job_id,
        "backs off" if dispatch.available_at else dispatch.status,
        fleet,
        workflow,
        dispatch.priority,
        f"{dispatch.attempts}/{dispatch.max_attempts}",
        dispatch.worker_id if dispatch.status == "leased" else None,
        dispatch.created_at,
    ]


@jobs.command("show")
@click.argument("any_id", metavar="ID", type=click.UUID)
@with_json
@clear_errors
def show_job(any_id: UUID, as_json: bool) -> None:
    """Show a job: where it stands, what it cost, and everything that happened to it."""
    from scripts.table import plain
    from tasks import dispatch_list
    from webapp.api.admin_audit import AuditSchema
    from webapp.api.admin_dispatches import shape

    with closing(open_backend(pools_may_be_away=True)) as backend:
        dispatch = dispatch_list.find(backend, any_id)
        job = dispatch_list.job_of(backend, dispatch)
        with backend.databases.central(read_only=True) as session:
            [shown] = dispatch_list.dispatches_shown(session, [dispatch])
            story = dispatch_list.timeline(session, dispatch.id)
    names = ("effect_slug", "status", "price_tokens", "error_code", "error_message")
    order = {name: getattr(job, name) for name in names} if job else None
    facts = shape(shown)
    known = facts | {f"job {name}": value for name, value in (order or {}).items()}
    lines = [f"{name:18}{plain(value)}" for name, value in known.items() if value is not None]
    told = facts | {"job": order, "timeline": AuditSchema(many=True).dump(story)}
    show(as_json, told, [*lines, "", _as_table(story)])


def _as_table(story: list["AuditLog"]) -> str:
    from scripts.table import table
    from webapp.shapes import brief

    rows = [[row.at, row.event, row.actor, brief(_said(row.details))] for row in story]
    return table(["at (UTC)", "event", "by", "said"], rows)


def _said(details: dict[str, Any]) -> str | None:
    """What went wrong, or why."""
    said: str | None = details.get("error") or details.get("reason") or details.get("note")
    return said


@jobs.command()
@click.argument("any_id", metavar="ID", type=click.UUID)
@with_json
@clear_errors
def cancel(any_id: UUID, as_json: bool) -> None:
    """Cancel a job that has not ended; its tokens come back.

    One that has ended stays as it ended.
    """
    from tasks import dispatch_list, interventions

    with closing(open_backend(pools_may_be_away=True)) as backend:
        found = dispatch_list.find(backend, any_id)
        done = interventions.cancel(backend, found.id, actor="cli")
    told = {"job_id": done.tenant_job_id, "dispatch_id": done.id, "status": done.status}
    show(as_json, told, f"The job {done.tenant_job_id} is {done.status}.")


@jobs.command()
@click.argument("any_id", metavar="ID", type=click.UUID)
@with_json
@clear_errors
def retry(any_id: UUID, as_json: bool) -> None:
    """Try a job that backs off now, or order the work of one that failed again.

    The latter makes a new job at the same price, for the same user. Again: the same new job.
    """
    from tasks import dispatch_list, interventions

    with closing(open_backend(pools_may_be_away=True)) as backend:
        found = dispatch_list.find(backend, any_id)
        done = interventions.retry(backend, found.id, actor="cli")
    told = {"job_id": done.tenant_job_id, "dispatch_id": done.id, "status": done.status}
    is_new = done.id != found.id
    word = "was ordered again as job" if is_new else "waits for its turn: job"
    show(as_json, told | {"new": is_new}, f"It {word} {done.tenant_job_id} ({done.status}).")
