"""The IMDS stand-in answers as the real one: to us, to boto3, and to other processes."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import requests
from botocore.utils import InstanceMetadataFetcher

from scripts.imds_stand_in import TOKEN, TOKEN_TTL, ImdsStandIn


@pytest.fixture
def imds() -> Iterator[ImdsStandIn]:
    with ImdsStandIn() as stand_in:
        yield stand_in


def new_token(imds: ImdsStandIn, name: str = "i-1", **headers: str) -> requests.Response:
    headers = {TOKEN_TTL: "60"} | headers
    return requests.put(imds.url(name) + "latest/api/token", headers=headers, timeout=5)


def get(imds: ImdsStandIn, path: str, *, name: str = "i-1", token: str = "") -> requests.Response:
    token = token or new_token(imds, name).text
    url = f"{imds.url(name)}latest/{path}"
    return requests.get(url, headers={TOKEN: token}, timeout=5)


def test_every_question_needs_a_token(imds: ImdsStandIn) -> None:
    url = imds.url("i-1") + "latest/meta-data/instance-id"
    assert requests.get(url, timeout=5).status_code == 401
    assert get(imds, "meta-data/instance-id", token="made-up").status_code == 401
    assert get(imds, "meta-data/instance-id").text == "i-1"


def test_a_token_is_over_when_its_time_is(imds: ImdsStandIn) -> None:
    token = new_token(imds, **{TOKEN_TTL: "1"}).text
    ends_at = time.monotonic() + 20
    while (answer := get(imds, "meta-data/instance-id", token=token)).status_code == 200:
        assert time.monotonic() < ends_at
        time.sleep(0.05)
    assert answer.status_code == 401


def test_a_token_is_good_for_its_own_instance_only(imds: ImdsStandIn) -> None:
    token = new_token(imds, "i-1").text
    assert get(imds, "meta-data/instance-id", name="i-2", token=token).status_code == 401


@pytest.mark.parametrize("ttl", ["", "0", "21601", "-1", "soon", "1.5"])
def test_a_token_has_a_lifetime_within_bounds(imds: ImdsStandIn, ttl: str) -> None:
    assert new_token(imds, **{TOKEN_TTL: ttl}).status_code == 400


def test_a_proxy_gets_no_token(imds: ImdsStandIn) -> None:
    assert new_token(imds, **{"X-Forwarded-For": "10.0.0.1"}).status_code == 403


def test_a_token_is_asked_for_at_latest_only(imds: ImdsStandIn) -> None:
    url = imds.url("i-1") + "2021-07-15/api/token"
    assert requests.put(url, headers={TOKEN_TTL: "60"}, timeout=5).status_code == 403


@pytest.mark.parametrize(
    "path", ["meta-data/spot/instance-action", "meta-data/no/such/thing", "instance-id", ""]
)
def test_what_is_not_there_is_404(imds: ImdsStandIn, path: str) -> None:
    assert get(imds, path).status_code == 404


def test_folders_list_what_is_in_them(imds: ImdsStandIn) -> None:
    imds.set("i-1", "tags/instance/FleetSlug", "sdxl")
    imds.set("i-1", "tags/instance/Stage", "prod")
    assert get(imds, "meta-data/tags/instance/").text == "FleetSlug\nStage"
    assert get(imds, "meta-data/tags/instance/Stage").text == "prod"
    assert "tags/" in get(imds, "meta-data/").text.splitlines()
    imds.set("i-1", "tags/instance/Stage", None)
    assert get(imds, "meta-data/tags/instance").text == "FleetSlug"


def test_notices_reach_one_instance_and_can_be_withdrawn(imds: ImdsStandIn) -> None:
    imds.notify_spot("i-1")
    imds.notify_rebalance("i-1")
    imds.notify_scale_in("i-1")
    notice = json.loads(get(imds, "meta-data/spot/instance-action").text)
    assert notice["action"] == "terminate"
    assert datetime.fromisoformat(notice["time"]) > datetime.now(UTC)
    rebalance = get(imds, "meta-data/events/recommendations/rebalance").text
    assert list(json.loads(rebalance)) == ["noticeTime"]
    assert get(imds, "meta-data/autoscaling/target-lifecycle-state").text == "Terminated"
    assert get(imds, "meta-data/spot/instance-action", name="i-2").status_code == 404

    imds.clear("i-1")
    assert get(imds, "meta-data/spot/instance-action").status_code == 404
    assert get(imds, "meta-data/events/recommendations/rebalance").status_code == 404
    assert get(imds, "meta-data/autoscaling/target-lifecycle-state").text == "InService"


def test_boto3_takes_credentials_from_it(imds: ImdsStandIn) -> None:
    """A client of IMDSv2 that is not ours agrees with the stand-in."""
    imds.set("i-1", "iam/security-credentials/worker", _credentials())
    fetcher = InstanceMetadataFetcher(base_url=imds.url("i-1"))
    found = fetcher.retrieve_iam_role_credentials()
    assert (found["role_name"], found["access_key"]) == ("worker", "AKIA0000")


def _credentials() -> str:
    return json.dumps(
        {
            "AccessKeyId": "AKIA0000",
            "SecretAccessKey": "s",
            "Token": "t",
            "Expiration": "2099-01-01T00:00:00Z",
        }
    )


@pytest.fixture
def process() -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "scripts.imds_stand_in", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


def test_other_processes_control_it_over_http(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("IMDS stand-in on http://127.0.0.1:")
    address = line.split()[-1]
    control = f"{address}/control/local-1"

    def ask(path: str) -> requests.Response:
        base = f"{address}/i/local-1/latest/"
        token = requests.put(base + "api/token", headers={TOKEN_TTL: "60"}, timeout=5).text
        return requests.get(base + "meta-data/" + path, headers={TOKEN: token}, timeout=5)

    assert requests.put(f"{control}/facts/instance-id", data="i-77", timeout=5).status_code == 200
    assert ask("instance-id").text == "i-77"
    assert requests.put(f"{control}/notices/spot", timeout=5).status_code == 200
    sent = requests.get(f"{control}/notices", timeout=5).json()["spot"]
    assert (sent["sent_at"] is not None, sent["seen_at"]) == (True, None)
    assert ask("spot/instance-action").json()["action"] == "terminate"
    seen = requests.get(f"{control}/notices", timeout=5).json()["spot"]
    assert seen["seen_at"] >= sent["sent_at"]
    assert requests.delete(f"{control}/notices", timeout=5).status_code == 200
    assert ask("spot/instance-action").status_code == 404

    for wrong in (f"{control}/notices/holiday", f"{control}/facts/", f"{control}/else"):
        assert requests.put(wrong, timeout=5).status_code == 404
    assert requests.get(f"{control}/else", timeout=5).status_code == 404
    assert requests.delete(f"{control}/else", timeout=5).status_code == 404


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_told(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    assert process.wait(10) == 0
