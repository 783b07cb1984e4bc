"""The worker protocol over the real application: who may speak, and what each word does."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from moto.server import ThreadedMotoServer
from redis import Redis
from sqlalchemy import select

from models import dispatches, fleets, jobs, workers, workflows
from models.audit import AuditLog
from models.base import utcnow
from models.dispatches import Dispatch
from models.workers import Worker
from tasks import reconcile
from tasks.backend import Backend
from tests.fixtures import FLEET_SECRET
from tests.webapp.calls import (
    PNG,
    Caller,
    Json,
    MakeCaller,
    answered,
    downloaded,
    has_video,
    new_effect,
    ordered,
    refused,
)

AppWith = Callable[..., Flask]


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

    def poll(self) -> Json | None:
        answer = self.call("poll", {"providers": ["self_hosted"], "current_load": 0})
        return None if answer.status_code == 204 else answered(answer)


def lease_of(leased: Json) -> Json:
    return {name: leased[name] for name in ("dispatch_id", "lease_token")}


def output(body: bytes = PNG, name: str = "out.png", mime_type: str = "image/png") -> Json:
    sha256 = hashlib.sha256(body).hexdigest()
    return {"name": name, "mime_type": mime_type, "size_bytes": len(body), "sha256": sha256}


def send(app: Flask, url: str, headers: dict[str, str], body: bytes = PNG) -> Any:
    path = "/" + url.split("/", 3)[3]
    return app.test_client().put(path, data=body, headers=headers)


@pytest.fixture
def effect(backend: Backend) -> str:
    """An effect, workflow and fleet that no other test touches; all have this name."""
    return new_effect(backend, cost=3)


@pytest.fixture
def gpu(app: Flask, effect: str) -> Gpu:
    return Gpu(app, effect).join()


@pytest.fixture
def ada(caller: MakeCaller) -> Caller:
    return caller(tokens=100)


def job_of(ada: Caller, job: Json) -> Json:
    return answered(ada.get(f"/api/ai-jobs/{job['id']}"))


def events(backend: Backend, dispatch_id: str) -> list[str]:
    with backend.databases.central(read_only=True) as session:
        rows = session.scalars(
            select(AuditLog).where(AuditLog.dispatch_id == UUID(dispatch_id)).order_by(AuditLog.at)
        )
        return [row.event for row in rows]


# Register


def test_a_worker_registers_with_the_fleets_secret(app: Flask, effect: str) -> None:
    registered = answered(Gpu(app, effect).register(), 201)
    assert len(registered["token"]) == 64
    assert registered["queue"] == effect
    assert registered["workflows_assigned"] == [effect]
    assert registered["heartbeat_seconds"] == 30
    assert registered["lease_seconds"] == 180


def test_the_token_is_stored_hashed(gpu: Gpu, backend: Backend) -> None:
    with backend.databases.central(read_only=True) as session:
        row = session.scalars(select(Worker).where(Worker.worker_id == gpu.worker_id)).one()
    assert row.token_hash == hashlib.sha256(gpu.token.encode()).hexdigest()


@pytest.mark.parametrize("secret", ["", "wrong", FLEET_SECRET + "x", FLEET_SECRET[:-1], "é"])
def test_a_wrong_secret_is_refused(app: Flask, effect: str, secret: str) -> None:
    refused(Gpu(app, effect).register(secret.encode().decode("latin-1")), 401, "unauthorized")


def test_without_any_secret_nobody_can_register(plain_app_with: AppWith) -> None:
    refused(Gpu(plain_app_with(fleet_secrets=""), "gpu-default").register(""), 401, "unauthorized")


def test_secrets_rotate_and_may_belong_to_one_fleet(plain_app_with: AppWith) -> None:
    app = plain_app_with(fleet_secrets="gpu-default=old gpu-default=new other=theirs")
    answered(Gpu(app, "gpu-default").register("old"), 201)
    answered(Gpu(app, "gpu-default").register("new"), 201)
    refused(Gpu(app, "gpu-default").register("theirs"), 401, "unauthorized")
    refused(Gpu(app, "gpu-default").register("gpu-default=old"), 401, "unauthorized")


@pytest.mark.parametrize("changed", [{"fleet_slug": "no-such-fleet"}, {"stage": "production"}])
def test_an_unknown_fleet_is_not_found(app: Flask, effect: str, changed: Json) -> None:
    refused(Gpu(app, effect).register(**changed), 404, "not_found")


@pytest.mark.parametrize(
    "changed",
    [
        {"worker_id": "a b"},
        {"worker_id": ""},
        {"worker_id": "x" * 101},
        {"worker_id": "a\n"},
        {"providers": []},
        {"providers": ["magic"]},
        {"max_concurrency": 0},
        {"capabilities": {"a": "b" * 20_000}},
        {"capabilities": []},
    ],
)
def test_nonsense_is_refused(app: Flask, effect: str, changed: Json) -> None:
    refused(Gpu(app, effect).register(**changed), 422, "invalid_input")


def test_an_id_in_use_is_refused(app: Flask, gpu: Gpu) -> None:
    other = Gpu(app, gpu.fleet, gpu.worker_id)
    refused(other.register(), 409, "worker_id_taken")
    assert gpu.poll() is None  # the first one is still known


def test_the_id_of_a_worker_that_is_gone_is_free(
    plain_app_with: AppWith, plain_backend: Backend
) -> None:
    slug = new_effect(plain_backend)
    app = plain_app_with(worker_gone_seconds=-1)
    first = Gpu(app, slug).join()
    second = Gpu(app, slug, first.worker_id).join()
    refused(first.call("poll"), 401, "unauthorized")
    assert second.poll() is None


def test_a_worker_that_starts_anew_shows_its_old_token(
    app: Flask, gpu: Gpu, ada: Caller, backend: Backend
) -> None:
    """It crashed in the middle of a job: that job goes on at once, and the try counts."""
    job = ordered(ada, gpu.fleet)
    leased = gpu.poll()
    assert leased is not None
    reborn = Gpu(app, gpu.fleet, gpu.worker_id)
    reborn.token = gpu.token
    reborn.token = answered(reborn.register(), 201)["token"]
    again = reborn.poll()
    assert again is not None
    assert again["job_id"] == job["id"]
    assert again["attempt"] == 2
    refused(reborn.call("complete", lease_of(leased) | {"outputs": [output()]}), 409, "lease_lost")


def test_a_fleet_takes_no_more_workers_than_it_may(
    app: Flask, effect: str, backend: Backend
) -> None:
    with backend.databases.central() as session:
        fleets.put(session, stage="dev", slug=effect, name="Small", max_workers=2)
    first, _ = Gpu(app, effect).join(), Gpu(app, effect).join()
    refused(Gpu(app, effect).register(), 409, "fleet_full")
    assert first.call("deregister").status_code == 204
    Gpu(app, effect).join()


def test_registering_is_limited_by_address(plain_app_with: AppWith) -> None:
    limits = "auth=9/minute submit=9/minute upload=9/minute api=9/minute register=2/minute "
    app = plain_app_with(rate_limits=limits + "worker=99/minute")
    for _ in range(2):
        refused(Gpu(app, "gpu-default").register("wrong"), 401, "unauthorized")
    refused(Gpu(app, "gpu-default").register(), 429, "rate_limited")


def test_a_workflow_mapped_later_reaches_workers_that_are_there(
    gpu: Gpu, ada: Caller, backend: Backend
) -> None:
    other = new_effect(backend, on_a_fleet=False)
    with backend.databases.central() as session:
        fleet = fleets.get(session, stage="dev", slug=gpu.fleet)
        fleets.assign(session, fleet, workflow_id=workflows.get(session, other).id)
    job = ordered(ada, other)
    leased = gpu.poll()
    assert leased is not None
    assert leased["job_id"] == job["id"]


# Instances


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An AWS stand-in with one instance in the group of the demo fleet; yields its id."""
    import boto3

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("autoscaling", region_name="us-east-1")
    client.create_launch_configuration(
        LaunchConfigurationName="l", ImageId="ami-1", InstanceType="t2.micro"
    )
    client.create_auto_scaling_group(
        AutoScalingGroupName="asg-dev-gpu-default",
        LaunchConfigurationName="l",
        MinSize=1,
        MaxSize=1,
        AvailabilityZones=["us-east-1a"],
    )
    yield client.describe_auto_scaling_instances()["AutoScalingInstances"][0]["InstanceId"]
    server.stop()


def test_an_instance_of_the_group_is_let_in_and_another_is_not(
    plain_app_with: AppWith, aws: str
) -> None:
    app = plain_app_with(check_instances="on")
    answered(Gpu(app, "gpu-default", aws).register(), 201)
    refused(Gpu(app, "gpu-default", "i-0123456789abcdef0").register(), 403, "forbidden")


def test_when_aws_is_away_the_door_stays_open(
    plain_app_with: AppWith, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    app = plain_app_with(check_instances="on")
    answered(Gpu(app, "gpu-default", f"i-{uuid4().hex[:17]}").register(), 201)
    assert "let in unchecked" in caplog.text


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
        workers.drain(session, gpu.worker_id)
    assert gpu.poll() is None
    assert answered(gpu.call("heartbeat"))["draining"] is True
    with backend.databases.central() as session:
        workers.drain(session, gpu.worker_id, draining=False)
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
    assert gpu.poll() is None


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
    backend.later.close()
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


# Fail and requeue


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
