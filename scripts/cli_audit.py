"""`comfyfleet audit`: who did what, when."""

import json
from contextlib import closing
from typing import Any
from uuid import UUID

import click

from scripts.command import clear_errors, open_backend, show, with_json


@click.command()
@click.option("--event", help="E.g. wallet.credit, job.fail, dead_letter.redrive.")
@click.option("--actor", help="user:ID, worker:NAME, system or cli.")
@click.option("--worker", "worker_id", help="The worker's name.")
@click.option("--job", "any_id", metavar="ID", type=click.UUID, help="A job, or its dispatch.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@with_json
@clear_errors
def audit(any_id: UUID | None, limit: int, as_json: bool, **asked: Any) -> None:
    """Show the audit log: who did what, the newest first.

    The table shows the beginning of long details; --json has all of them.
    """
    from models import audit as log
    from models.audit import AuditLog
    from scripts.table import table
    from tasks import dispatch_list
    from webapp.api.admin_audit import AuditSchema
    from webapp.shapes import brief

    with closing(open_backend(pools_may_be_away=True)) as backend:
        dispatch_id = dispatch_list.find(backend, any_id).id if any_id else None
        wanted = log.matching(dispatch_id=dispatch_id, **asked)
        newest = wanted.order_by(AuditLog.at.desc(), AuditLog.id.desc()).limit(limit)
        with backend.databases.central(read_only=True) as session:
            found = session.scalars(newest).all()
    rows = [
        [row.at, row.event, row.actor, row.worker_id, brief(json.dumps(row.details), 120)]
        for row in found
    ]
    headings = ["at (UTC)", "event", "by", "worker", "details"]
    show(as_json, AuditSchema(many=True).dump(found), table(headings, rows))
