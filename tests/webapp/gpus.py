"""A GPU worker that speaks the protocol by hand, and what tests look at afterwards."""

import hashlib
from typing import Any
from uuid import UUID, uuid4

from flask import Flask
from sqlalchemy import select

from models.audit import AuditLog
from tasks.backend import Backend
from tests.fixtures import FLEET_SECRET
from tests.webapp.calls import (
    PNG,
    Caller,
    Json,
    answered,
)


class Gpu:
    """A worker that speaks the protocol by hand."""

    def __init__(self, app: Flask, fleet: str, worker_id: str | None = None) -> None:
        self.app, self.fleet = app, fleet
        self.worker_id = worker_id or f"w-{uuid4().hex[:12]}"
        self.token = ""

    def call(self, name: str, body: Json | None = None, **headers: str) -> Any:
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        return self.app.test_client().post(
            f"/api/worker/{name}", json=body if body is not None else {}, headers=headers
        )

    def register(self, secret: str = FLEET_SECRET, **changed: Any) -> Any:
        body = {
            "worker_id": self.worker_id,
            "fleet_slug": self.fleet,
            "stage": "dev",
            "max_concurrency": 1,
            "providers": ["self_hosted"],
            "capabilities": {"gpu": "none"},
        }
        return self.call("register", body | changed, **{"X-Fleet-Secret": secret})

    def join(self) -> "Gpu":
        self.token = answered(self.register(), 201)["token"]
        return self

    def poll(self, **told: int) -> Json | None:
        answer = self.call("poll", {"providers": ["self_hosted"], "current_load": 0} | told)
        return None if answer.status_code == 204 else answered(answer)


def lease_of(leased: Json) -> Json:
    return {name: leased[name] for name in ("dispatch_id", "lease_token")}


def output(body: bytes = PNG, name: str = "out.png", mime_type: str = "image/png") -> Json:
    sha256 = hashlib.sha256(body).hexdigest()
    return {"name": name, "mime_type": mime_type, "size_bytes": len(body), "sha256": sha256}


def send(app: Flask, url: str, headers: dict[str, str], body: bytes = PNG) -> Any:
    path = "/" + url.split("/", 3)[3]
    return app.test_client().put(path, data=body, headers=headers)


def held(gpu: Gpu) -> Json:
    """The lease that the worker gets now."""
    leased = gpu.poll()
    assert leased is not None
    return leased


def job_of(ada: Caller, job: Json) -> Json:
    return answered(ada.get(f"/api/ai-jobs/{job['id']}"))


def events(backend: Backend, dispatch_id: str) -> list[str]:
    with backend.databases.central(read_only=True) as session:
        rows = session.scalars(
            select(AuditLog).where(AuditLog.dispatch_id == UUID(dispatch_id)).order_by(AuditLog.at)
        )
        return [row.event for row in rows]
