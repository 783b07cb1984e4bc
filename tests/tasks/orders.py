"""Ordering demo effects in tests."""

from typing import Any
from uuid import UUID, uuid4

from models import dispatches, files, fleets, lanes, videos, workflows
from models.dispatches import Dispatch, Lease
from models.jobs import Job
from tasks import submission
from tasks.backend import Backend
from tests.fixtures import Person

EFFECT = "colour-card"  # takes no media


def request(
    person: Person, *, key: str | None = None, effect: str = EFFECT, **inputs: Any
) -> submission.Request:
    return submission.Request(
        tenant_id=person.tenant_id,
        user_id=person.user_id,
        effect=effect,
        idempotency_key=key or uuid4().hex,
        inputs=inputs,
    )


def order(backend: Backend, person: Person, **given: Any) -> Job:
    return submission.submit(backend, request(person, **given)).job


def lease_next(backend: Backend, *, worker_id: str = "w1", **given: Any) -> Dispatch | None:
    """What a poll of a worker that can do everything would get."""
    with backend.databases.central() as session:
        fleet = fleets.get(session, stage=backend.settings.stage, slug="gpu-default")
        every = [workflow.id for workflow in session.query(workflows.Workflow)]
        return lanes.lease(
            session,
            fleet_id=fleet.id,
            providers=["self_hosted"],
            workflow_ids=every,
            worker_id=worker_id,
            lease_seconds=backend.settings.lease_seconds,
            **given,
        )


def lease_of(dispatch: Dispatch) -> Lease:
    assert dispatch.lease_token is not None
    return Lease(dispatch.id, dispatch.lease_token)


def dispatch_of(backend: Backend, job: Job) -> Dispatch | None:
    with backend.databases.central(read_only=True) as session:
        return dispatches.find_by_job(session, job.tenant_id, job.id)


def add_video(backend: Backend, person: Person) -> UUID:
    """A checked image, as if it had been uploaded."""
    upload = files.Output(
        name="in.png",
        kind="image",
        mime_type="image/png",
        size_bytes=1,
        object_key=f"tenants/t/files/{uuid4()}.png",
        content_hash="0" * 64,
    )
    with backend.databases.tenant(person.tenant_id) as session:
        file = files.store_output(session, upload, user_id=person.user_id)
        session.flush()
        return videos.create(session, user_id=person.user_id, file=file, title="In").id
