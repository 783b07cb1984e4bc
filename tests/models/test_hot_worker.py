"""What a worker's calls write on PostgreSQL, in few round trips, is what the plain functions
write on SQLite: the same story is told on both, and their rows are compared."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from models import dispatches, hot_worker, jobs, videos
from models.dispatches import Dispatch, Lease
from models.effects import Effect
from models.files import Output
from models.jobs import Job
from tasks import catalog, outcomes, reports, submission, uploads
from tasks.backend import Backend
from tests.fixtures import Person, make_person
from tests.models.both_ways import Story, assert_both_write_the_same, rows
from tests.tasks import gpu, orders

IMAGE = gpu.IMAGE
SOUND = uploads.Made(name="b.flac", mime_type="audio/flac", size_bytes=7)


def ordered_for(backend: Backend, ada: Person, video_id: UUID) -> Job:
    request = replace(orders.request(ada, effect="image-invert"), video_id=video_id)
    return submission.submit(backend, request).job


def one_output(backend: Backend, ada: Person) -> None:
    orders.order(backend, ada)
    worker = gpu.join(backend, "w1")
    lease = gpu.take(backend, worker)
    reports.complete(
        backend, worker, lease, outputs=[IMAGE], provider_job_id="p", timings={"run_seconds": 1.5}
    )


def several_outputs_twice(backend: Backend, ada: Person) -> None:
    orders.order(backend, ada)
    worker = gpu.join(backend, "w1")
    lease = gpu.take(backend, worker)
    told(backend, lease, ["a.png", "b.flac"])
    for _ in range(2):
        reports.complete(backend, worker, lease, outputs=[IMAGE, SOUND])


def told(backend: Backend, lease: Lease, names: list[str]) -> None:
    with backend.databases.central() as session:
        dispatches.extend(session, lease, seconds=60, progress=0.5, upload_names=names)


def a_video(backend: Backend, ada: Person) -> None:
    ordered_for(backend, ada, orders.add_video(backend, ada))
    worker = gpu.join(backend, "w1")
    reports.complete(backend, worker, gpu.take(backend, worker), outputs=[IMAGE])


def a_video_that_a_newer_job_works_on(backend: Backend, ada: Person) -> None:
    video_id = orders.add_video(backend, ada)
    ordered_for(backend, ada, video_id)
    ordered_for(backend, ada, video_id)
    worker = gpu.join(backend, "w1")
    reports.complete(backend, worker, gpu.take(backend, worker), outputs=[IMAGE])


def a_second_try(backend: Backend, ada: Person) -> None:
    orders.order(backend, ada)
    worker = gpu.join(backend, "w1")
    reports.fail(backend, worker, gpu.take(backend, worker), error="x", retryable=True)
    reports.complete(backend, worker, gpu.take(backend, worker), outputs=[IMAGE])


def a_worker_that_went_silent(backend: Backend, ada: Person) -> None:
    job = orders.order(backend, ada)
    silent, worker = gpu.join(backend, "w0"), gpu.join(backend, "w1")
    lease = gpu.take(backend, silent)
    with backend.databases.central() as session:
        dispatches.extend(session, lease, seconds=-1)
    assert gpu.take(backend, worker).token != lease.token
    found = orders.dispatch_of(backend, job)
    assert found is not None
    assert (found.was_taken_over, found.last_error) == (True, dispatches.WENT_SILENT)


def a_lost_answer(backend: Backend, ada: Person) -> None:
    orders.order(backend, ada)
    worker = gpu.join(backend, "w1")
    for _ in range(3):
        assert gpu.poll(backend, worker, holds_nothing=True) is not None


def a_cancelled_job(backend: Backend, ada: Person) -> None:
    job = orders.order(backend, ada)
    worker = gpu.join(backend, "w1")
    lease = gpu.take(backend, worker)
    outcomes.cancel(backend, ada.tenant_id, job.id)
    assert reports.complete(backend, worker, lease, outputs=[IMAGE]).status == "cancelled"


def a_crash_between_the_databases(backend: Backend, ada: Person) -> None:
    job = orders.order(backend, ada)
    worker = gpu.join(backend, "w1")
    lease = gpu.take(backend, worker)
    with backend.databases.tenant(ada.tenant_id) as session:
        jobs.complete(session, job.id, outputs=[])
    assert reports.complete(backend, worker, lease, outputs=[IMAGE]).status == "completed"


@pytest.mark.parametrize("is_heard", [True, False], ids=["heard", "unheard"])
@pytest.mark.parametrize(
    "story",
    [
        one_output,
        several_outputs_twice,
        a_video,
        a_video_that_a_newer_job_works_on,
        a_second_try,
        a_worker_that_went_silent,
        a_lost_answer,
        a_cancelled_job,
        a_crash_between_the_databases,
    ],
)
def test_both_ways_write_the_same_rows(
    postgres: Backend, sqlite: Backend, story: Story, is_heard: bool
) -> None:
    assert_both_write_the_same(postgres, sqlite, story, is_heard=is_heard)


RESULT = Output(
    name="out.png",
    kind="image",
    mime_type="image/png",
    size_bytes=5,
    object_key="tenants/t/ai-jobs/j/output-1.png",
    content_hash="0" * 64,
)


def held_job(postgres: Backend) -> tuple[Job, Dispatch]:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    job = orders.order(postgres, ada)
    leased = gpu.poll(postgres, gpu.join(postgres))
    assert leased is not None
    return job, leased.dispatch


def test_a_job_that_has_ended_is_left_to_the_plain_functions(postgres: Backend) -> None:
    job, dispatch = held_job(postgres)
    with postgres.databases.tenant(job.tenant_id) as session:
        jobs.cancel(session, job.id)
    before = rows(postgres)
    assert hot_worker.start(postgres.databases, job.tenant_id, job.id) is None
    completed = hot_worker.complete(
        postgres.databases, dispatch, outputs=[RESULT], provider_job_id=None
    )
    assert completed is None
    assert rows(postgres) == before


def test_following_a_dispatch_that_has_ended_changes_nothing(postgres: Backend) -> None:
    _, dispatch = held_job(postgres)
    done = hot_worker.complete(postgres.databases, dispatch, outputs=[RESULT], provider_job_id=None)
    assert done is not None
    given: dict[str, Any] = {"actor": "worker:w1", "details": {"a": 1}}
    hot_worker.follow(postgres.databases, dispatch, done, **given)
    with postgres.databases.central() as session:
        session.query(Effect).update({"last_processing_time_seconds": 77.0})
    before = rows(postgres)
    assert len([row for row in before["worker_audit_logs"] if row["event"] == "job.complete"]) == 1
    hot_worker.follow(postgres.databases, dispatch, done, **given)
    assert rows(postgres) == before


def test_only_a_completed_job_can_be_followed(postgres: Backend) -> None:
    job, dispatch = held_job(postgres)
    with pytest.raises(ValueError, match="did not complete"):
        hot_worker.follow(postgres.databases, dispatch, job, actor="system", details={})


@pytest.mark.parametrize("given", ["a video", "a file"])
def test_a_worker_gets_the_file_that_was_ordered_with(backend: Backend, given: str) -> None:
    catalog.seed_demo(backend)
    ada = make_person(backend, tokens=100)
    video_id = orders.add_video(backend, ada)
    with backend.databases.tenant(ada.tenant_id) as session:
        file = videos.get(session, video_id, user_id=ada.user_id).original_file
    if given == "a video":
        ordered_for(backend, ada, video_id)
    else:
        orders.order(backend, ada, effect="image-invert", image=str(file.id))
    leased = gpu.poll(backend, gpu.join(backend))
    assert leased is not None
    [asset] = leased.assets
    assert asset["is_primary_input"]
    assert file.object_key in asset.pop("url")
    assert asset | {"placeholder": ""} == {
        "placeholder": "",
        "content_hash": file.content_hash,
        "filename": file.filename,
        "mime_type": file.mime_type,
        "is_primary_input": True,
    }


def test_a_video_that_is_gone_is_left_to_the_plain_functions(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    video_id = orders.add_video(postgres, ada)
    job = ordered_for(postgres, ada, video_id)
    with postgres.databases.tenant(ada.tenant_id) as session:
        videos.remove(session, videos.get(session, video_id, user_id=ada.user_id))
    assert gpu.poll(postgres, gpu.join(postgres)) is None
    with postgres.databases.tenant(ada.tenant_id) as session:
        assert jobs.get(session, job.id).error_code == "not_runnable"
