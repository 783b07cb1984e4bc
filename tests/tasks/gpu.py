"""A registered worker in tests: it is known, polls, and holds jobs."""

from typing import Any
from uuid import uuid4

from models import workers
from models.dispatches import Lease
from models.workers import Identity
from tasks import leasing, registration, uploads
from tasks.backend import Backend
from tests.fixtures import FLEET_SECRET

FLEET = "gpu-default"
IMAGE = uploads.Made(name="a.png", mime_type="image/png", size_bytes=5, sha256="0" * 64)


def request(worker_id: str | None = None, **given: Any) -> registration.Request:
    asked: dict[str, Any] = {
        "worker_id": worker_id or f"w-{uuid4().hex[:12]}",
        "fleet_slug": FLEET,
        "stage": "dev",
        "providers": ["self_hosted"],
        "capabilities": {},
    }
    return registration.Request(**(asked | given))


def register(backend: Backend, worker_id: str | None = None, **given: Any) -> str:
    """A new worker; returns its token."""
    asked = request(worker_id, **given)
    return registration.register(backend, asked, secret=FLEET_SECRET).token


def identify(backend: Backend, token: str) -> Identity:
    with backend.databases.central(read_only=True) as session:
        return workers.identify(session, token)


def join(backend: Backend, worker_id: str | None = None, **given: Any) -> Identity:
    return identify(backend, register(backend, worker_id, **given))


def poll(backend: Backend, worker: Identity, **given: Any) -> leasing.Leased | None:
    return leasing.lease(backend, worker, providers=["self_hosted"], **given)


def take(backend: Backend, worker: Identity) -> Lease:
    """The lease of the job that the worker gets now."""
    leased = poll(backend, worker)
    assert leased is not None
    return leasing.lease_of(leased.dispatch)
