"""How workers come in over the real application: secrets, names, places, instances."""

import hashlib
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from flask import Flask
from moto.server import ThreadedMotoServer
from sqlalchemy import select

from models import fleets, workflows
from models.workers import Worker
from tasks.backend import Backend
from tests.fixtures import FLEET_SECRET
from tests.webapp.calls import (
    Caller,
    Json,
    answered,
    new_effect,
    ordered,
    refused,
)
from tests.webapp.gpus import Gpu, lease_of, output

AppWith = Callable[..., Flask]


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
    again = reborn.poll(holds_nothing=True)  # the try counts all the same
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
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    client = boto3.Session().client("autoscaling", region_name="us-east-1")
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


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_the_fleets_region_is_the_environments_and_not_the_buckets(
    plain_app_with: AppWith, aws: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    app = plain_app_with(check_instances="on", s3_region="eu-west-1")
    refused(Gpu(app, "gpu-default", aws).register(), 403, "forbidden")
    monkeypatch.setenv(name, "us-east-1")
    answered(Gpu(app, "gpu-default", aws).register(), 201)


def test_when_aws_is_away_the_door_stays_open(
    plain_app_with: AppWith, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    app = plain_app_with(check_instances="on")
    answered(Gpu(app, "gpu-default", f"i-{uuid4().hex[:17]}").register(), 201)
    assert "let in unchecked" in caplog.text
