"""What operators ask for is found along an index, however much else there is."""

from typing import Any

import pytest
from sqlalchemy import Select, text
from sqlalchemy.orm import Session

from models import audit
from models.audit import AuditLog
from models.dispatches import Dispatch
from tasks import dispatch_list
from tasks.backend import Backend


def plan(session: Session, query: Select[Any], table: Any, time: Any) -> str:
    """How PostgreSQL would find the newest of these, if it could not look at every row."""
    newest = query.order_by(time.desc(), table.id.desc()).limit(51)
    session.execute(text("SET LOCAL enable_seqscan = off"))
    session.execute(text("SET LOCAL enable_sort = off"))
    asked = newest.compile(session.connection(), compile_kwargs={"literal_binds": True})
    rows = session.connection().exec_driver_sql(f"EXPLAIN {asked}", {})
    return "\n".join(rows.scalars())


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_what_went_wrong_is_found_among_all_that_did_not(postgres: Backend, status: str) -> None:
    with postgres.databases.central() as session:
        wanted = dispatch_list.dispatches_wanted(session, status=status)
        found = plan(session, wanted, Dispatch, Dispatch.created_at)
    assert "ix_ai_job_dispatches_went_wrong" in found


@pytest.mark.parametrize("actor", ["cli", "user:00000000-0000-4000-8000-000000000000"])
def test_what_a_person_did_is_found_among_all_that_workers_did(
    postgres: Backend, actor: str
) -> None:
    with postgres.databases.central() as session:
        found = plan(session, audit.matching(actor=actor), AuditLog, AuditLog.at)
    assert "ix_worker_audit_logs_by_people" in found


def test_a_fleet_that_nobody_knows_costs_no_look_at_the_jobs(postgres: Backend) -> None:
    with postgres.databases.central() as session:
        wanted = dispatch_list.dispatches_wanted(session, fleet="nowhere")
        assert "Scan" not in plan(session, wanted, Dispatch, Dispatch.created_at)


@pytest.mark.parametrize("actor", ["system", "worker:w1", "cli", "user:boss"])
def test_the_log_of_everybody_is_complete(backend: Backend, actor: str) -> None:
    """The condition that names the index hides nobody."""
    with backend.databases.central() as session:
        for other in ("system", "worker:w1", "cli", "user:boss"):
            audit.record(session, "x", actor=other)
        session.flush()
        [row] = session.scalars(audit.matching(actor=actor))
    assert row.actor == actor
