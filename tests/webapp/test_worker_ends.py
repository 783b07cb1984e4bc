"""Jobs that workers give up, give back or leave behind, over the real application."""

from collections.abc import Callable
from uuid import UUID

from flask import Flask
from redis import Redis

from models import dispatches
from models.base import utcnow
from models.dispatches import Dispatch
from tasks import reconcile
from tasks.backend import Backend
from tests.webapp.calls import (
    Caller,
    Json,
    answered,
    ordered,
    refused,
)
from tests.webapp.gpus import Gpu, events, job_of, lease_of

AppWith = Callable[..., Flask]


def test_a_failed_job_is_refunded_and_says_why(gpu: Gpu, ada: Caller, backend: Backend) -> None:
    job = ordered(ada, gpu.fleet)
    leased = gpu.poll()
    assert leased is not None
    report = lease_of(leased) | {
        "error": '{"exception_message": "Padding is too large at /opt/comfy/nodes.py"}',
        "trace": 'File "/opt/comfy/nodes.py", line 1',
        "error_code": "execution_failed",
    }
    for _ in range(2):
        assert answered(gpu.call("fail", report)) == {"status": "failed"}
    shown = job_of(ada, job)
    assert (shown["status"], shown["refunded"]) == ("failed", True)
    assert shown["error"] == {
        "code": "execution_failed",
        "message": "Padding is too large at …",
    }
    assert answered(ada.get("/api/wallet")) == {"balance": 100, "reserved": 0}
    with backend.databases.central(read_only=True) as session:
        row = session.get_one(Dispatch, UUID(leased["dispatch_id"]))
    assert "/opt/comfy/nodes.py" in (row.last_error or "")  # operators see all of it
    assert events(backend, leased["dispatch_id"]) == ["job.lease", "job.fail"]


def test_a_retryable_failure_is_tried_again_and_then_given_up(gpu: Gpu, ada: Caller) -> None:
    job = ordered(ada, gpu.fleet)
    report = {"error": "ComfyUI went away", "retryable": True}
    first = gpu.poll()
    assert first is not None
    for _ in range(2):
        assert answered(gpu.call("fail", lease_of(first) | report)) == {"status": "queued"}
    assert job_of(ada, job)["status"] == "queued"
    second = gpu.poll()
    assert second is not None
    assert second["attempt"] == 2
    assert answered(gpu.call("fail", lease_of(second) | report)) == {"status": "queued"}
    assert gpu.poll() is None  # it pauses before the third try
    third = lease_later(gpu, second["dispatch_id"])
    assert answered(gpu.call("fail", third | report)) == {"status": "failed"}
    shown = job_of(ada, job)
    assert shown["error"]["code"] == "attempts_exhausted"
    assert shown["error"]["message"] == "ComfyUI went away"
    assert answered(ada.get("/api/wallet"))["balance"] == 100


def lease_later(gpu: Gpu, dispatch_id: str) -> Json:
    """As if the pause were over."""
    backend: Backend = gpu.app.extensions["comfyfleet"]
    with backend.databases.central() as session:
        dispatches.locked(session, UUID(dispatch_id)).available_at = utcnow()
    with Redis.from_url(backend.settings.redis_url) as redis:
        redis.delete(gpu.fleet)
    assert reconcile.ring_for_waiting(backend) >= 1  # nobody else rings when a pause is over
    leased = gpu.poll()
    assert leased is not None
    return lease_of(leased)


def test_a_requeued_job_is_next_again_and_the_try_does_not_count(
    gpu: Gpu, ada: Caller, backend: Backend
) -> None:
    job, later = ordered(ada, gpu.fleet), ordered(ada, gpu.fleet)
    leased = gpu.poll()
    assert leased is not None
    report = lease_of(leased) | {"reason": "spot interruption"}
    for _ in range(2):
        assert answered(gpu.call("requeue", report)) == {"status": "queued"}
    shown = job_of(ada, job)
    assert (shown["status"], shown["attempts"]) == ("queued", 0)
    again = gpu.poll()
    assert again is not None
    assert (again["job_id"], again["attempt"]) == (job["id"], 1)
    assert again["lease_token"] != leased["lease_token"]
    assert events(backend, leased["dispatch_id"]) == ["job.lease", "job.requeue", "job.lease"]
    refused(gpu.call("requeue", report), 409, "lease_lost")
    assert later["status"] == "queued"


def test_a_worker_that_leaves_gives_its_job_to_others(app: Flask, gpu: Gpu, ada: Caller) -> None:
    job = ordered(ada, gpu.fleet)
    assert gpu.poll() is not None
    assert gpu.call("deregister").status_code == 204
    refused(gpu.call("deregister"), 401, "unauthorized")
    other = Gpu(app, gpu.fleet).join()
    leased = other.poll()
    assert leased is not None
    assert leased["job_id"] == job["id"]
