"""What operators order workers to do.

A worker is nudged to ask what is new, and would hear it at its next heartbeat anyway. Web
processes remember a worker for a moment (webapp/auth.py): this one forgets it at once, others
may let it poll once more. What it gets so, the reconciler takes from it.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from models import audit, dispatches, enlisted
from models.fleets import Fleet
from models.workers import Worker
from tasks.backend import Backend

Step = Callable[[Session, Worker], bool]


def approve(backend: Backend, id_or_name: str, *, actor: str) -> Worker:
    """Let one in again that was locked out. Its token is what it was."""
    return _order(backend, id_or_name, "worker.approve", actor, enlisted.approve)


def drain(backend: Backend, id_or_name: str, *, draining: bool = True, actor: str) -> Worker:
    """No more jobs; the one it has it finishes."""
    event = "worker.drain" if draining else "worker.undrain"

    def step(session: Session, worker: Worker) -> bool:
        return enlisted.set_draining(session, worker, draining=draining)

    return _order(backend, id_or_name, event, actor, step)


def revoke(backend: Backend, id_or_name: str, *, actor: str) -> Worker:
    """Lock it out: its token is refused, its name can't register, its job is for others."""
    abandoned: list[UUID] = []
    with backend.databases.central() as session:
        worker = enlisted.locked(session, id_or_name)
        fleet = session.get_one(Fleet, worker.fleet_id)
        is_new = enlisted.approve(session, worker, approved=False)
        abandoned = dispatches.abandon(session, fleet_id=fleet.id, worker_id=worker.worker_id)
        if is_new or abandoned:
            _note(session, "worker.revoke", worker, fleet, actor, abandoned=len(abandoned))
    for dispatch_id in abandoned:
        backend.bell.ring(fleet.slug, dispatch_id)
    _tell(backend, worker, fleet)
    return worker


def rotate_token(backend: Backend, id_or_name: str, *, actor: str) -> tuple[Worker, str]:
    """The old token is refused from now on; the new one is told this once."""
    with backend.databases.central() as session:
        worker = enlisted.locked(session, id_or_name)
        fleet = session.get_one(Fleet, worker.fleet_id)
        token = enlisted.rotate_token(session, worker)
        _note(session, "worker.rotate_token", worker, fleet, actor)
    _tell(backend, worker, fleet)
    return worker, token


def _order(backend: Backend, id_or_name: str, event: str, actor: str, step: Step) -> Worker:
    with backend.databases.central() as session:
        worker = enlisted.locked(session, id_or_name)
        fleet = session.get_one(Fleet, worker.fleet_id)
        if step(session, worker):
            _note(session, event, worker, fleet, actor)
    _tell(backend, worker, fleet)
    return worker


def _note(
    session: Session, event: str, worker: Worker, fleet: Fleet, actor: str, **details: Any
) -> None:
    audit.record(
        session, event, actor=actor, worker_id=worker.worker_id, fleet=fleet.slug, **details
    )


def _tell(backend: Backend, worker: Worker, fleet: Fleet) -> None:
    backend.workers.forget_all()
    backend.bell.nudge(fleet.slug, worker.worker_id)
    backend.news.tell_operators()
