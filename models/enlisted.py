"""Workers as operators see them, and what operators decide about them.

A decision belongs to the name: a worker that registers anew under it is still draining, or still
locked out. Each function says whether anything has changed.
"""

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, Select, select, tuple_, update
from sqlalchemy.orm import Session

from models.base import utcnow
from models.dispatches import LEASED, Dispatch
from models.errors import NotFound
from models.fleets import Fleet
from models.workers import Worker, new_token, token_hash


def everybody(*, stage: str, fleet: str | None = None) -> Select[tuple[Worker]]:
    query = select(Worker).join(Fleet, Fleet.id == Worker.fleet_id).where(Fleet.stage == stage)
    return query if fleet is None else query.where(Fleet.slug == fleet)


def held_by(session: Session, workers: Collection[Worker]) -> dict[str, list[Dispatch]]:
    """What each of them works on now, by its name."""
    found: dict[str, list[Dispatch]] = {worker.worker_id: [] for worker in workers}
    leases = select(Dispatch).where(
        LEASED,
        Dispatch.fleet_id.in_({worker.fleet_id for worker in workers}),
        Dispatch.worker_id.in_(found),
    )
    for dispatch in session.scalars(leases.order_by(Dispatch.leased_at)):
        found[str(dispatch.worker_id)].append(dispatch)
    return found


def locked(session: Session, id_or_name: str) -> Worker:
    """By the id of its row, else by its name. Held, so that it does not register meanwhile.

    Who registered while we waited has another row now: a second look finds that.
    """
    for _ in range(2):
        for condition in _conditions(id_or_name):
            row = select(Worker).where(condition).with_for_update(key_share=True)
            worker = session.scalar(row.execution_options(populate_existing=True))
            if worker is not None:
                return worker
    raise NotFound(f"There is no worker {id_or_name!r}.")


def _conditions(id_or_name: str) -> list[ColumnElement[bool]]:
    by_name = Worker.worker_id == id_or_name
    try:
        return [Worker.id == UUID(id_or_name), by_name]
    except ValueError:
        return [by_name]


def approve(session: Session, worker: Worker, *, approved: bool = True) -> bool:
    """Without approval its token is refused, and it can't register either."""
    is_new = worker.is_approved != approved
    worker.is_approved = approved
    session.flush()
    return is_new


def drain(session: Session, id_or_name: str, *, draining: bool = True) -> bool:
    return set_draining(session, locked(session, id_or_name), draining=draining)


def set_draining(session: Session, worker: Worker, *, draining: bool) -> bool:
    """Have it take no more jobs; it finishes the one it has, and stays."""
    is_new = worker.is_draining != draining
    worker.is_draining = draining
    session.flush()
    return is_new


def abandon_locked_out(session: Session, *, now: datetime | None = None) -> list[Dispatch]:
    """What workers hold that were locked out may be leased again at once."""
    now = now or utcnow()
    statement = (
        update(Dispatch)
        .where(LEASED, Dispatch.lease_expires_at > now)
        .where(
            tuple_(Dispatch.fleet_id, Dispatch.worker_id).in_(
                select(Worker.fleet_id, Worker.worker_id).where(Worker.is_approved.is_(False))
            )
        )
        .values(lease_expires_at=now, last_error="Its worker was locked out.", updated_at=now)
        .returning(Dispatch)
        .execution_options(synchronize_session=False)
    )
    return list(session.scalars(statement))


def rotate_token(session: Session, worker: Worker) -> str:
    """A new token, known to nobody but the caller; the old one is worth nothing any more."""
    token = new_token()
    worker.token_hash = token_hash(token)
    session.flush()
    return token
