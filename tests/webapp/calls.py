"""What the tests of the API do over and over: call it, upload, order, finish, be refused."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID, uuid4

from flask import Flask
from sqlalchemy import select
from werkzeug.test import TestResponse

from models import files, fleets, jobs, lanes, object_paths, schema, videos, workflows
from models.dispatches import Lease
from models.effects import Provider
from models.fleets import Fleet
from models.workflows import Workflow
from tasks import catalog, outcomes
from tasks.backend import Backend
from tests.fixtures import Person
from tests.models.media_files import picture

Json: TypeAlias = dict[str, Any]

#: The id of nothing at all. The same in every run, because tests are named by it.
NOBODY = "00000000-0000-4000-8000-000000000000"
PNG = picture("PNG", (8, 6))


@dataclass(frozen=True)
class Caller:
    """Somebody who is signed in."""

    app: Flask
    person: Person

    @property
    def backend(self) -> Backend:
        made: Backend = self.app.extensions["comfyfleet"]
        return made

    def call(self, method: str, url: str, **given: Any) -> TestResponse:
        headers = self.person.headers | given.pop("headers", {})
        return self.app.test_client().open(url, method=method, headers=headers, **given)

    def get(self, url: str, **given: Any) -> TestResponse:
        return self.call("GET", url, **given)

    def post(self, url: str, **given: Any) -> TestResponse:
        return self.call("POST", url, **given)

    def delete(self, url: str, **given: Any) -> TestResponse:
        return self.call("DELETE", url, **given)

    def wallet(self) -> Json:
        return answered(self.get("/api/wallet"))


MakeCaller = Callable[..., Caller]


def answered(response: TestResponse, status: int = 200) -> Json:
    assert response.status_code == status, response.get_data(as_text=True)
    assert response.mimetype == "application/json"
    body: Json = response.get_json()
    return body


def refused(response: TestResponse, status: int, code: str, field: str | None = None) -> Json:
    """A problem as every client may expect it; `field` is the one that the problem names."""
    assert response.status_code == status, response.get_data(as_text=True)
    assert response.mimetype == "application/problem+json"
    body: Json = response.get_json()
    assert {"type", "title", "status", "detail", "code"} <= set(body)
    assert (body["status"], body["code"]) == (status, code)
    assert body["type"].endswith(code)
    assert body["title"].endswith(".")
    assert body["detail"]
    assert body["request_id"] == response.headers["X-Request-ID"]
    if field is not None:
        assert field in body["errors"], body
        assert all(sentence.endswith(".") for sentence in body["errors"][field]), body
    return body


@contextmanager
def nothing_written(backend: Backend) -> Iterator[None]:
    """Every row of every table is what it was before."""
    before = every_row(backend)
    yield
    assert every_row(backend) == before


def every_row(backend: Backend) -> dict[str, list[Any]]:
    for later in (backend.later, backend.checks):
        later.close()  # what earlier calls left for a moment later is done now
    rows = {}
    with backend.databases.central(read_only=True) as session:
        for name, table in schema.METADATA["central"].tables.items():
            rows[name] = sorted(map(repr, session.execute(table.select())))
    for pool in backend.databases.pools:
        with backend.databases.pool(pool) as session:
            for name, table in schema.METADATA["tenant"].tables.items():
                rows[f"{pool}.{name}"] = sorted(map(repr, session.execute(table.select())))
    return rows


def is_utc(time: str) -> bool:
    return time.endswith("Z") and datetime.fromisoformat(time).utcoffset() == timedelta(0)


def announce(caller: Caller, body: bytes = PNG, mime_type: str = "image/png") -> Json:
    """Say that a file will come; returns `file` and `upload`."""
    new = {"filename": "cat.png", "mime_type": mime_type, "size_bytes": len(body)}
    return answered(caller.post("/api/videos/uploads", json=new), 201)


def put(caller: Caller, target: Json, body: bytes, **headers: str) -> TestResponse:
    """Send bytes to a signed address. Nobody is signed in there."""
    sent = target["headers"] | headers
    return caller.app.test_client().put(target["url"], data=body, headers=sent)


def downloaded(caller: Caller, url: str) -> bytes:
    answer = caller.app.test_client().get(url, buffered=True)
    assert answer.status_code == 200
    return answer.data


def uploaded(caller: Caller, body: bytes = PNG, mime_type: str = "image/png") -> str:
    """A file that was announced and sent; returns its id."""
    announced = announce(caller, body, mime_type)
    assert put(caller, announced["upload"], body).status_code == 200
    file_id: str = announced["file"]["id"]
    return file_id


def has_file(caller: Caller, kind: str = "image", *, checked: bool = True) -> UUID:
    """A file as it is after its upload was checked, without the second that checking takes."""
    backend, who, file_id = caller.backend, caller.person, uuid4()
    mime_type = {"image": "image/png", "video": "video/mp4"}[kind]
    key = object_paths.input_key(who.tenant_id, file_id, mime_type)
    backend.store.write(key, PNG, mime_type)
    with backend.databases.tenant(who.tenant_id) as session:
        files.announce(
            session,
            user_id=who.user_id,
            filename="cat.png",
            mime_type=mime_type,
            size_bytes=len(PNG),
            file_id=file_id,
            object_key=key,
        )
        if checked:
            files.accept(
                session,
                file_id,
                user_id=who.user_id,
                object_key=key,
                content_hash="x",
                kind=kind,
                mime_type=mime_type,
            )
    return file_id


def has_video(caller: Caller, kind: str = "image") -> UUID:
    file_id = has_file(caller, kind)
    with caller.backend.databases.tenant(caller.person.tenant_id) as session:
        user_id = caller.person.user_id
        file = files.get(session, file_id, user_id=user_id)
        return videos.create(session, user_id=user_id, file=file, title="My cat").id


def has_endpoint(caller: Caller) -> dict[str, str]:
    """A webhook endpoint, and a delivery to it, by their names in addresses."""
    new = {"url": "https://hooks.example.com/", "events": ["wallet.low"]}
    endpoint_id = answered(caller.post("/api/webhook-endpoints", json=new), 201)["id"]
    sent = answered(caller.post(f"/api/webhook-endpoints/{endpoint_id}/test"), 201)
    return {"endpoint_id": endpoint_id, "delivery_id": sent["id"]}


def order(caller: Caller, effect: str = "colour-card", **given: Any) -> TestResponse:
    body = {"effect_id": effect, "idempotency_key": uuid4().hex} | given
    return caller.post("/api/ai-jobs", json=body)


def ordered(caller: Caller, effect: str = "colour-card", **given: Any) -> Json:
    return answered(order(caller, effect, **given), 201)


def leased(backend: Backend, job_id: str) -> Lease:
    """A worker takes this job. What waits before it is leased too, and left alone."""
    with backend.databases.central() as session:
        everything = [row.id for row in session.scalars(select(Workflow))]
        for fleet in session.scalars(select(Fleet)).all():
            while dispatch := lanes.lease(
                session,
                fleet_id=fleet.id,
                providers=[Provider.SELF_HOSTED],
                workflow_ids=everything,
                worker_id="gpu-1",
                lease_seconds=600,
            ):
                if dispatch.tenant_job_id == UUID(job_id):
                    break
            if dispatch:
                break
    assert dispatch is not None
    assert dispatch.lease_token is not None
    with backend.databases.tenant(dispatch.tenant_id) as session:
        jobs.start(session, dispatch.tenant_job_id)
    return Lease(dispatch.id, dispatch.lease_token)


def completed(caller: Caller, job_id: str, body: bytes = PNG) -> None:
    """A worker runs this job and delivers one image."""
    lease = leased(caller.backend, job_id)
    key = object_paths.output_key(
        caller.person.tenant_id, job_id, "image/png", lease_token=lease.token
    )
    caller.backend.store.write(key, body, "image/png")
    result = outcomes.Output(
        name="result.png",
        kind="image",
        mime_type="image/png",
        size_bytes=len(body),
        object_key=key,
        content_hash=hashlib.sha256(body).hexdigest(),
    )
    outcomes.complete(caller.backend, lease, outputs=[result])


def failed(caller: Caller, job_id: str) -> None:
    outcomes.fail(
        caller.backend,
        leased(caller.backend, job_id),
        code="execution_failed",
        message="The effect could not be applied.",
        error="Traceback: the operators see this",
    )


def new_effect(backend: Backend, *, cost: int = 1, on_a_fleet: bool = True) -> str:
    """An effect of its own, with a workflow and a fleet that no other test touches."""
    slug = f"card-{uuid4().hex[:12]}"
    nodes = {"1": {"class_type": "Paint", "inputs": {"width": "{{width}}"}}}
    width = {"name": "width", "type": "integer", "default": 8, "min": 1, "max": 99}
    catalog.put_workflow(
        backend,
        {
            "slug": slug,
            "name": "A card",
            "kind": "image",
            "graph": nodes,
            "output_node_id": "1",
            "properties": [width],
        },
    )
    effect = {"slug": slug, "name": "Card", "description": "", "workflow": slug}
    catalog.put_effect(backend, effect | {"credits_cost": cost, "overrides": {}})
    if on_a_fleet:
        with backend.databases.central() as session:
            fleet = fleets.put(session, stage=backend.settings.stage, slug=slug, name="Its own")
            fleets.assign(session, fleet, workflow_id=workflows.get(session, slug).id)
    return slug
