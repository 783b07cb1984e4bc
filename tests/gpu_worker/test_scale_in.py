"""Scale-in protection follows the work; trouble with AWS never reaches a job."""

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from gpu_worker.scale_in import ScaleInProtection
from scripts.server_process import free_port
from tests.gpu_worker.aws import ENVIRONMENT, GROUP, REGION, Aws, aws
from tests.gpu_worker.cached import wait_for
from tests.gpu_worker.file_server import FileServer, Reply, Request, file_server, status, whole

ACCEPTED = b"<R><SetInstanceProtectionResult/></R>"
REFUSED = b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def cloud() -> Iterator[tuple[Aws, str]]:
    with aws() as started:
        yield started, started.make_group()


@pytest.fixture
def files() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


def protection(url: str, instance_id: str = "i-1", *, enabled: bool = True) -> ScaleInProtection:
    return ScaleInProtection(
        enabled=enabled,
        instance_id=instance_id,
        group=GROUP,
        region=REGION,
        endpoint_url=url,
        retry_seconds=0.05,
    )


def at_a_server_that(files: FileServer, *replies: Reply) -> ScaleInProtection:
    files.put("/", *replies)
    return protection(f"http://127.0.0.1:{files.port}")


def test_the_instance_is_protected_while_busy(cloud: tuple[Aws, str]) -> None:
    server, instance_id = cloud
    one = protection(server.url, instance_id)
    for _ in range(2):
        one.busy()
        wait_for(server.is_protected)
        one.idle()
        wait_for(lambda: not server.is_protected())
    one.close()


def test_close_unprotects(cloud: tuple[Aws, str]) -> None:
    server, instance_id = cloud
    one = protection(server.url, instance_id)
    one.busy()
    wait_for(server.is_protected)
    one.close()
    assert not server.is_protected()


def test_close_unprotects_also_an_instance_that_was_born_protected(cloud: tuple[Aws, str]) -> None:
    server, instance_id = cloud
    server.client("autoscaling").set_instance_protection(
        InstanceIds=[instance_id], AutoScalingGroupName=GROUP, ProtectedFromScaleIn=True
    )
    protection(server.url, instance_id).close()
    assert not server.is_protected()


def test_after_close_nothing_is_changed(cloud: tuple[Aws, str]) -> None:
    server, instance_id = cloud
    one = protection(server.url, instance_id)
    one.busy()
    one.close()
    one.busy()
    one.close()
    assert not server.is_protected()


def test_off_ec2_nobody_is_asked(files: FileServer) -> None:
    files.put("/", status(500))
    one = protection(f"http://127.0.0.1:{files.port}", enabled=False)
    one.busy()
    one.idle()
    one.close()
    assert files.asked == []
    assert one._thread is None


def wishes() -> tuple[list[str], Reply]:
    """What AWS was asked for, and a reply that notes it."""
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append("busy" if b"ProtectedFromScaleIn=true" in request.body else "idle")
        whole(ACCEPTED)(request)

    return asked, note


def test_many_short_jobs_cost_one_call(files: FileServer) -> None:
    asked, note = wishes()
    one = at_a_server_that(files, note)
    for _ in range(50):
        one.busy()
        one.idle()
        time.sleep(0.002)
    one.busy()
    wait_for(lambda: asked != [])
    one.close()
    assert asked == ["busy", "idle"]


def test_a_job_does_not_wait_for_aws_and_the_latest_wish_wins(files: FileServer) -> None:
    asked, note = wishes()
    release = threading.Event()

    def slow(request: Request) -> None:
        release.wait(20)
        note(request)

    one = at_a_server_that(files, slow)
    one.busy()  # would hang here for as long as AWS does
    wait_for(lambda: files.asked != [])
    for _ in range(10):
        one.idle()
        one.busy()
    one.idle()
    release.set()
    wait_for(lambda: len(asked) == 2)
    one.close()
    assert asked == ["busy", "idle"]


def test_a_refusal_is_logged_once_and_tried_again(
    files: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    asked, note = wishes()
    one = at_a_server_that(files, *[whole(REFUSED, code=403)] * 3, note)
    with caplog.at_level(logging.WARNING, logger="gpu_worker.scale_in"):
        one.busy()
        wait_for(lambda: asked == ["busy"])
    one.close()
    assert asked == ["busy", "idle"]
    assert len(caplog.records) == 1
    assert "AccessDenied" in caplog.text


def test_aws_away_is_no_trouble_for_the_job(caplog: pytest.LogCaptureFixture) -> None:
    one = protection(f"http://127.0.0.1:{free_port()}")
    with caplog.at_level(logging.WARNING, logger="gpu_worker.scale_in"):
        one.busy()
        wait_for(lambda: caplog.records != [])
    one.close()
    assert "Could not connect" in caplog.text


def test_close_does_not_wait_for_an_aws_that_hangs(files: FileServer) -> None:
    one = at_a_server_that(files, files.mute())
    one.busy()
    wait_for(lambda: files.asked != [])
    closing = threading.Thread(target=one.close)
    closing.start()
    closing.join(4.5)
    assert not closing.is_alive(), "a call is given five seconds; close does not wait for that"


def test_without_a_region_it_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    one = ScaleInProtection(enabled=True, instance_id="i-1", group=GROUP)
    with caplog.at_level(logging.WARNING, logger="gpu_worker.scale_in"):
        one.busy()
        wait_for(lambda: caplog.records != [])
    one.close()
    assert "region" in caplog.text
