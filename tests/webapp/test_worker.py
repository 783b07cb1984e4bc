"""The worker protocol over the real application: what each call does, and for whom."""

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest
from flask import Flask
from sqlalchemy import select

from models import enlisted, jobs
from models.workers import Worker
from tasks.backend import Backend
from tests.webapp.calls import (
    PNG,
    Caller,
    Json,
    MakeCaller,
    answered,
    downloaded,
    has_video,
    ordered,
    refused,
)
from tests.webapp.gpus import Gpu, events, job_of, lease_of, output, send

AppWith = Callable[..., Flask]

# Poll


def test_a_poll_without_work_is_empty(gpu: Gpu) -> None:
    assert gpu.poll() is None


@pytest.mark.parametrize("name", ["poll", "heartbeat", "complete", "fail", "requeue", "deregister"])
def test_every_call_needs_a_workers_token(app: Flask, ada: Caller, name: str) -> None:
    stranger = Gpu(app, "gpu-default")
    refused(stranger.call(name), 401, "unauthorized")
    stranger.token = ada.person.token
    refused(stranger.call(name), 401, "unauthorized")


def test_a_locked_out_worker_is_forbidden(gpu: Gpu, backend: Backend) -> None:
    with backend.databases.central() as session:
        session.scalars(
            select(Worker).where(Worker.worker_id == gpu.worker_id)
        ).one().is_approved = False
    refused(gpu.call("poll"), 403, "forbidden")


def test_a_lease_has_everything_the_job_needs(app: Flask, caller: MakeCaller) -> None:
    ada, gpu = caller(tokens=100), Gpu(app, "gpu-default").join()
    video = has_video(ada)
    job = ordered(ada, "image-invert", video_id=str(video))
    leased = gpu.poll()
    while leased is not None and leased["job_id"] != job["id"]:
        leased = gpu.poll()  # what other tests of this module left waiting
    assert leased is not None
    assert leased["workflow"] == "image-invert"
    assert leased["provider"] == "self_hosted"
    assert leased["attempt"] == 1
    assert leased["deadline_seconds"] == 3600
    assert leased["output_headers"] == {"Content-Type": "image/png"}
    [asset] = leased["input_payload"]["assets"]
    assert asset["is_primary_input"] is True
    assert asset["url"] == leased["input_url"]
    assert asset["mime_type"] == "image/png"
    graph = leased["input_payload"]["graph"]
    assert graph["1"]["inputs"]["image"] == asset["placeholder"]
    assert graph["3"]["inputs"]["filename_prefix"] == f"job-{job['id']}-1/out"
    assert leased["input_payload"]["output_node_id"] == "3"
    assert downloaded(ada, leased["input_url"]) == PNG
    shown = job_of(ada, job)
    assert shown["status"] == "processing"
    assert shown["started_at"]


def test_a_full_or_draining_worker_gets_nothing(gpu: Gpu, ada: Caller, backend: Backend) -> None:
    ordered(ada, gpu.fleet)
    full = {"providers": ["self_hosted"], "current_load": 1, "max_concurrency": 1}
    assert gpu.call("poll", full).status_code == 204
    with backend.databases.central() as session:
        enlisted.drain(session, gpu.worker_id)
    assert gpu.poll() is None
    assert answered(gpu.call("heartbeat"))["draining"] is True
    with backend.databases.central() as session:
        enlisted.drain(session, gpu.worker_id, draining=False)
    assert gpu.poll() is not None


def test_a_worker_gets_only_what_its_providers_run(gpu: Gpu, ada: Caller) -> None:
    ordered(ada, gpu.fleet)
    assert gpu.call("poll", {"providers": ["cloud"]}).status_code == 204
    assert gpu.poll() is not None


def test_a_job_that_ended_meanwhile_is_passed_over(gpu: Gpu, ada: Caller, backend: Backend) -> None:
    """Its dispatch was left open by a crash between the two databases."""
    ended, waiting = ordered(ada, gpu.fleet), ordered(ada, gpu.fleet)
    with backend.databases.tenant(ada.person.tenant_id) as session:
        jobs.cancel(session, UUID(ended["id"]))
    leased = gpu.poll()
    assert leased is not None
    assert leased["job_id"] == waiting["id"]
    assert Gpu(gpu.app, gpu.fleet).join().poll() is None


def test_a_worker_that_holds_nothing_gets_the_job_whose_answer_was_lost(
    gpu: Gpu, ada: Caller, backend: Backend
) -> None:
    first, second = ordered(ada, gpu.fleet), ordered(ada, gpu.fleet)
    lost, again = gpu.poll(), gpu.poll(holds_nothing=True)
    assert lost is not None
    assert again is not None
    assert [lost["job_id"], again["job_id"]] == [first["id"], first["id"]]
    assert (again["attempt"], job_of(ada, first)["status"]) == (1, "processing")
    refused(gpu.call("heartbeat", lease_of(lost)), 409, "lease_lost")
    assert events(backend, lost["dispatch_id"]) == ["job.lease", "job.requeue", "job.lease"]
    another = gpu.poll()  # it does not say so: it keeps what it has
    assert another is not None
    assert another["job_id"] == second["id"]
    answered(gpu.call("heartbeat", lease_of(again)))


def test_a_job_that_cannot_be_put_together_is_failed_and_refunded(
    gpu: Gpu, ada: Caller, backend: Backend
) -> None:
    job = ordered(ada, gpu.fleet)
    with backend.databases.tenant(ada.person.tenant_id) as session:
        row = jobs.get(session, UUID(job["id"]))
        row.input_payload = row.input_payload | {"content_hash": "0" * 64}  # no such file
    assert gpu.poll() is None
    shown = job_of(ada, job)
    assert (shown["status"], shown["refunded"]) == ("failed", True)
    assert shown["error"]["code"] == "not_runnable"


# Heartbeat


def test_an_idle_heartbeat_says_what_there_is_to_know(gpu: Gpu) -> None:
    answer = answered(gpu.call("heartbeat"))
    assert answer["cancel_requested"] is answer["draining"] is False
    assert answer["next_heartbeat_seconds"] == 30
    assert "output_url" not in answer


def test_a_heartbeat_extends_the_lease_and_brings_progress(gpu: Gpu, ada: Caller) -> None:
    job = ordered(ada, gpu.fleet)
    leased = gpu.poll()
    assert leased is not None
    told = lease_of(leased) | {"progress": 0.5, "current_node": "KSampler"}
    answer = answered(gpu.call("heartbeat", told))
    assert answer["lease_expires_at"] > leased["lease_expires_at"]
    assert answer["next_heartbeat_seconds"] == 2
    assert answer["output_url"]
    assert job_of(ada, job)["progress"] == 0.5
    answered(gpu.call("heartbeat", lease_of(leased) | {"progress": 0.3}))
    assert job_of(ada, job)["progress"] == 0.5  # never backwards


def test_a_heartbeat_tells_that_the_job_was_cancelled(gpu: Gpu, ada: Caller) -> None:
    job = ordered(ada, gpu.fleet)
    leased = gpu.poll()
    assert leased is not None
    answered(ada.post(f"/api/ai-jobs/{job['id']}/cancel"))
    answer = answered(gpu.call("heartbeat", lease_of(leased)))
    assert answer["cancel_requested"] is True
    late = answered(gpu.call("complete", lease_of(leased) | {"outputs": [output()]}))
    assert late["status"] == "cancelled"
    assert answered(ada.get("/api/wallet")) == {"balance": 100, "reserved": 0}


@pytest.mark.parametrize("name", ["heartbeat", "complete", "fail", "requeue"])
def test_a_lease_that_is_lost_is_refused_everywhere(gpu: Gpu, name: str) -> None:
    stale = {"dispatch_id": str(uuid4()), "lease_token": str(uuid4())}
    body = {
        "heartbeat": {},
        "complete": {"outputs": [output()]},
        "fail": {"error": "x"},
        "requeue": {"reason": "spot"},
    }[name]
    refused(gpu.call(name, stale | body), 409, "lease_lost")


# Complete


def test_a_job_runs_from_order_to_result(
    app: Flask, gpu: Gpu, ada: Caller, backend: Backend
) -> None:
    job = ordered(ada, gpu.fleet)
    leased = gpu.poll()
    assert leased is not None
    assert send(app, leased["output_url"], leased["output_headers"]).status_code == 200
    report = lease_of(leased) | {
        "outputs": [output()],
        "provider_job_id": "p-1",
        "timings": {"run_seconds": 1.5},
    }
    for _ in range(2):  # its answer may get lost
        assert answered(gpu.call("complete", report)) == {"status": "completed"}
    done = job_of(ada, job)
    assert (done["status"], done["progress"], done["attempts"]) == ("completed", 1.0, 1)
    [made] = done["outputs"]
    assert (made["name"], made["kind"], made["size_bytes"]) == ("out.png", "image", len(PNG))
    assert downloaded(ada, made["url"]) == PNG
    assert answered(ada.get("/api/wallet")) == {"balance": 97, "reserved": 0}
    entries = answered(ada.get("/api/wallet/transactions"))["items"]
    assert sorted(e["type"] for e in entries if e["job_id"] == job["id"]) == [
        "JOB_CONSUME",
        "JOB_RESERVE",
    ]
    assert events(backend, leased["dispatch_id"]) == ["job.lease", "job.complete"]
    assert answered(ada.get(f"/api/effects/{gpu.fleet}"))["estimated_seconds"] is not None


def test_several_outputs_ask_for_addresses_of_their_own(app: Flask, gpu: Gpu, ada: Caller) -> None:
    job = ordered(ada, gpu.fleet)
    leased = gpu.poll()
    assert leased is not None
    made = [output(), output(b"sound", "b.flac", "audio/flac")]
    refused(
        gpu.call("complete", lease_of(leased) | {"outputs": made}), 422, "invalid_input"
    )  # nowhere to go
    asked = answered(gpu.call("heartbeat", lease_of(leased) | {"outputs": made}))
    assert [upload["name"] for upload in asked["uploads"]] == ["out.png", "b.flac"]
    image, sound = asked["uploads"]
    assert send(app, image["url"], image["headers"], PNG + b"x").status_code == 422  # pinned
    assert send(app, image["url"], {"Content-Type": "image/jpeg"}).status_code == 422
    assert send(app, image["url"], image["headers"]).status_code == 200
    assert send(app, sound["url"], sound["headers"], b"sound").status_code == 200
    answered(gpu.call("complete", lease_of(leased) | {"outputs": made}))
    done = job_of(ada, job)["outputs"]
    assert [(one["name"], one["kind"]) for one in done] == [
        ("out.png", "image"),
        ("b.flac", "audio"),
    ]
    assert [downloaded(ada, one["url"]) for one in done] == [PNG, b"sound"]


def test_an_output_that_is_not_there_is_noticed_and_holds_up_nobody(
    gpu: Gpu, ada: Caller, backend: Backend
) -> None:
    ordered(ada, gpu.fleet)
    leased = gpu.poll()
    assert leased is not None
    answered(gpu.call("complete", lease_of(leased) | {"outputs": [output()]}))
    backend.checks.close()
    assert events(backend, leased["dispatch_id"])[-1] == "output.suspect"


def test_the_video_follows_its_job(app: Flask, caller: MakeCaller) -> None:
    ada, gpu = caller(tokens=100), Gpu(app, "gpu-default").join()
    video = has_video(ada)
    job = ordered(ada, "image-invert", video_id=str(video))
    leased = gpu.poll()
    while leased is not None and leased["job_id"] != job["id"]:
        leased = gpu.poll()
    assert leased is not None
    send(app, leased["output_url"], leased["output_headers"])
    answered(gpu.call("complete", lease_of(leased) | {"outputs": [output()]}))
    shown = answered(ada.get(f"/api/videos/{video}"))
    assert shown["status"] == "completed"
    assert shown["processed_file_url"]
    assert shown["job_id"] == job["id"]


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [output() | {"mime_type": "text/html"}],
        [output() | {"size_bytes": -1}],
        [output() | {"sha256": "x"}],
        [output() | {"name": ""}],
        [output() | {"size_bytes": 2**50}],
    ],
)
def test_outputs_that_cannot_be_are_refused(gpu: Gpu, ada: Caller, outputs: list[Json]) -> None:
    ordered(ada, gpu.fleet)
    leased = gpu.poll()
    assert leased is not None
    refused(gpu.call("complete", lease_of(leased) | {"outputs": outputs}), 422, "invalid_input")
