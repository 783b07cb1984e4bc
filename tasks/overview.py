"""What operators see at a glance: how fleets stand, what runs, what happened last."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import fleet_figures
from models.audit import AuditLog
from models.base import utcnow
from models.dispatches import LEASED, Dispatch
from models.fleet_figures import FleetFigures
from models.fleets import Fleet
from tasks import dispatch_list
from tasks.backend import Backend
from tasks.dispatch_list import ShownDispatch

RUNNING = 50  # jobs, the newest
LATEST = 50  # rows of the audit log


@dataclass(frozen=True)
class Overview:
    fleets: list[FleetFigures]
    running: list[ShownDispatch]
    latest: Sequence[AuditLog]  # newest first


def of_stage(backend: Backend) -> Overview:
    stage = backend.settings.stage
    with backend.databases.central(read_only=True) as session:
        return Overview(
            fleets=fleet_figures.of_stage(session, stage=stage, now=utcnow()),
            running=dispatch_list.dispatches_shown(session, _running(session, stage)),
            latest=session.scalars(
                select(AuditLog).order_by(AuditLog.at.desc(), AuditLog.id.desc()).limit(LATEST)
            ).all(),
        )


def _running(session: Session, stage: str) -> Sequence[Dispatch]:
    """Along the index of leases, which holds no more rows than there are workers."""
    here = select(Fleet.id).where(Fleet.stage == stage)
    newest = (Dispatch.leased_at.desc(), Dispatch.id)
    query = select(Dispatch).where(LEASED, Dispatch.fleet_id.in_(here))
    return session.scalars(query.order_by(*newest).limit(RUNNING)).all()
