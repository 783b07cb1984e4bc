"""`comfyfleet up` with all of its real parts, and what it refuses before it starts any."""

import json
import os
import signal
import socket
from pathlib import Path

import boto3
import pytest

from scripts.comfyui_stand_in.process import comfyui
from scripts.demo_customer import Customer
from scripts.server_process import free_port
from scripts.stack_parts import http_answers
from tasks.backend import Backend
from tests.scripts.running_stack import RunningStack, up, wait_until

READY_NAMES = {
    "api_url",
    "console_url",
    "studio_url",
    "flower_url",
    "comfyui_url",
    "redis_url",
    "fleet_slug",
    "stage",
    "admin_token",
    "demo_user",
    "fleet_secret",
}


def order_and_wait(stack: RunningStack) -> int:
    """Order a picture as the demo user; returns the balance when it is done."""
    ready = stack.ready()
    with Customer(ready["api_url"]) as customer:
        customer.sign_in(**ready["demo_user"])
        job = customer.order("colour-card")
        wait_until(
            lambda: customer.job(job["id"])["status"] in ("completed", "failed"), "the job ends"
        )
        assert customer.job(job["id"])["status"] == "completed", stack.said()
        return customer.balance()


def refused(folder: Path, *options: str) -> str:
    """What `up` said, after it ended with 2 and started nothing."""
    with up(folder, *options) as stack:
        assert stack.process.wait(60) == 2, stack.said()
        assert not stack.state.logs.exists()
        return stack.said()


@pytest.mark.slow
def test_a_stack_works_stops_cleanly_and_remembers(tmp_path: Path) -> None:
    with up(tmp_path / "state", "--port", "0", "--gpu-workers", "2", "--flower") as stack:
        first = stack.ready()
        assert set(first) == READY_NAMES
        assert stack.state.ready_file.stat().st_mode & 0o777 == 0o600
        balance = order_and_wait(stack)
        with Customer(first["api_url"]) as admin:
            admin.token = first["admin_token"]
            assert admin.call("GET", "/api/me")["role"] == "admin"
        assert len(stack.members("gpu_worker")) == 2
        with up(tmp_path / "state") as second:
            assert second.process.wait(60) == 2
        assert stack.state.read_ready() == first, "a second one leaves the first alone"
        assert stack.stop() == 0, stack.said()
        assert not stack.state.ready_file.exists()
        assert stack.members() == []
    assert "comfyfleet is up." in stack.said()

    with up(tmp_path / "state", "--port", "0") as stack:
        again = stack.ready()
        for name in ("demo_user", "admin_token", "fleet_secret"):
            assert again[name] == first[name]
        assert order_and_wait(stack) < balance
        assert stack.stop(signal.SIGTERM) == 0


@pytest.mark.slow
def test_whatever_is_killed_comes_back_and_jobs_go_on(tmp_path: Path) -> None:
    with up(tmp_path / "state", "--port", "0") as stack:
        stack.ready()
        for word in ("gpu_worker", "valkey-server", "comfyui_stand_in", "gunicorn", "celery"):
            killed = stack.members(word)
            assert killed, word
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda word=word, old=killed: set(stack.members(word)) - set(old), word)
            wait_until(lambda: http_answers(f"{stack.ready()['api_url']}/readyz"), "the API")
            order_and_wait(stack)
        assert stack.stop() == 0, stack.said()
        assert stack.members() == []


@pytest.mark.slow
def test_a_stack_that_was_killed_leaves_nobody_and_starts_again(tmp_path: Path) -> None:
    with up(tmp_path / "state", "--port", "0") as stack:
        first = stack.ready()
        stack.process.kill()
        stack.process.wait()
    port = first["api_url"].rpartition(":")[2]
    with up(tmp_path / "state", "--port", port) as stack:
        assert stack.ready()["api_url"] == first["api_url"]
        order_and_wait(stack)
        assert stack.stop() == 0, stack.said()


@pytest.fixture
def s3_login(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What boto3 and the backend need to reach the real S3 server, as variables."""
    login = {
        "AWS_ACCESS_KEY_ID": os.environ["TEST_S3_ACCESS_KEY"],
        "AWS_SECRET_ACCESS_KEY": os.environ["TEST_S3_SECRET_KEY"],
        "COMFYFLEET_S3_ENDPOINT_URL": os.environ["TEST_S3_URL"],
    }
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    return login


def new_bucket() -> str:
    name = f"up-{os.urandom(4).hex()}"
    endpoint = os.environ["COMFYFLEET_S3_ENDPOINT_URL"]
    s3 = boto3.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1")
    s3.create_bucket(Bucket=name)
    return name


@pytest.mark.slow
def test_servers_of_ones_own_take_the_place_of_ours(
    tmp_path: Path, postgres: Backend, s3_login: dict[str, str]
) -> None:
    settings = postgres.settings
    with comfyui(tmp_path / "comfyui") as own:
        options = {
            "--port": "0",
            "--database": settings.central_url,
            "--pool": settings.pools["main"],
            "--redis": settings.redis_url,
            "--s3": f"s3://{new_bucket()}",
            "--comfyui": own.url,
        }
        words = [word for option in options.items() for word in option]
        with up(tmp_path / "state", *words, **s3_login) as stack:
            ready = stack.ready()
            assert (ready["comfyui_url"], ready["redis_url"]) == (own.url, settings.redis_url)
            order_and_wait(stack)
            assert stack.members("valkey-server") + stack.members("comfyui_stand_in") == []
            [worker] = stack.members("gpu_worker")
            told = Path(f"/proc/{worker}/environ").read_text()
            for kept in (settings.pools["main"], s3_login["AWS_SECRET_ACCESS_KEY"]):
                assert kept not in told, "a worker holds no credentials of databases or storage"
            assert stack.stop() == 0, stack.said()
    assert not list(stack.state.path.glob("*.db"))


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--port", "--redis-port", "--comfyui-port", "--flower-port"):
            said = refused(tmp_path / option, "--port", "0", option, port)
            assert f"Port {port} can't be had" in said
            assert f"choose another port with {option}" in said


def test_servers_that_do_not_answer_are_refused_before_anything_starts(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    any_port = ("--port", "0")
    said = refused(tmp_path / "a", *any_port, "--comfyui", f"http://{nobody}")
    assert f"No ComfyUI answers at http://{nobody}." in said
    said = refused(tmp_path / "b", *any_port, "--redis", f"redis://{nobody}/0")
    assert "Redis does not answer" in said
    one = f"postgresql+psycopg2://nobody@{nobody}/x"
    said = refused(tmp_path / "c", *any_port, "--database", one, "--pool", one)
    assert "The database does not answer" in said
    assert "go together" in refused(tmp_path / "d", *any_port, "--database", one)
    assert "--s3 takes s3://BUCKET" in refused(tmp_path / "e", *any_port, "--s3", "bucket")


def test_a_ready_file_that_a_crash_left_is_removed_first(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text(json.dumps({"api_url": "http://127.0.0.1:1"}))
    refused(tmp_path, "--port", "0", "--s3", "bucket")
    assert not (tmp_path / "ready.json").exists()
