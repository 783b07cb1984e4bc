"""Uploads, results and their objects, as users and workers leave them in the storage."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID, uuid4

import boto3
import pytest

from models import files, jobs, object_paths, videos
from models.files import File
from models.jobs import Job
from models.videos import Video
from tasks import outcomes, submission
from tasks.backend import Backend
from tests.fixtures import Person
from tests.tasks import gpu, orders


@contextmanager
def on_s3(backend: Backend) -> Iterator[Backend]:
    """The same backend with a bucket of its own."""
    bucket, endpoint = f"bucket-{uuid4().hex}", os.environ["TEST_S3_URL"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", os.environ["TEST_S3_ACCESS_KEY"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["TEST_S3_SECRET_KEY"])
        patch.delenv("AWS_SESSION_TOKEN", raising=False)
        boto3.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(
            Bucket=bucket
        )
        place = {"storage_url": f"s3://{bucket}/a/prefix", "s3_endpoint_url": endpoint}
        other = Backend.open(replace(backend.settings, **place))  # type: ignore[arg-type]
        yield other
        other.close()


def upload(backend: Backend, person: Person) -> Video:
    """A checked image."""
    file_id = uuid4()
    key = object_paths.input_key(person.tenant_id, file_id, "image/png")
    backend.store.write(key, b"bytes", "image/png")
    with backend.databases.tenant(person.tenant_id) as session:
        sent = files.Output(
            name="in.png",
            kind="image",
            mime_type="image/png",
            size_bytes=5,
            object_key=key,
            content_hash="0" * 64,
        )
        file = files.store_output(session, sent, user_id=person.user_id)
        session.flush()
        return videos.create(session, user_id=person.user_id, file=file, title="In")


def order(backend: Backend, person: Person, video_id: UUID | None) -> Job:
    effect = "image-invert" if video_id else orders.EFFECT
    request = replace(orders.request(person, effect=effect), video_id=video_id)
    return submission.submit(backend, request).job


def result(backend: Backend, person: Person, video_id: UUID | None = None) -> Job:
    """A job that a worker has completed, with its object."""
    job = order(backend, person, video_id)
    backend.later.close()
    complete(backend, gpu.join(backend))
    return stored(backend, job)


def complete(backend: Backend, worker: gpu.Identity) -> None:
    lease = gpu.take(backend, worker)
    with backend.databases.central(read_only=True) as session:
        dispatch = outcomes.dispatches.check(session, lease)
    key = object_paths.output_key(
        dispatch.tenant_id, dispatch.tenant_job_id, "image/png", lease_token=lease.token
    )
    backend.store.write(key, b"result", "image/png")
    made = files.Output(
        name="out.png",
        kind="image",
        mime_type="image/png",
        size_bytes=6,
        object_key=key,
        content_hash="0" * 64,
    )
    outcomes.complete(backend, lease, outputs=[made])


def stored(backend: Backend, job: Job) -> Job:
    with backend.databases.tenant(job.tenant_id) as session:
        return jobs.get(session, job.id)


def video_of(backend: Backend, person: Person, video_id: UUID) -> Video:
    with backend.databases.tenant(person.tenant_id) as session:
        return videos.get(session, video_id, user_id=person.user_id)


def is_there(backend: Backend, file: File) -> bool:
    return backend.store.head(file.object_key) is not None


def results(backend: Backend, job: Job) -> list[File]:
    return [output.file for output in stored(backend, job).outputs]
