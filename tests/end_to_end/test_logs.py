"""What all processes say: one form, one trace for each job, and no secret of anybody."""

import json
import re
import secrets
import socket
from urllib.parse import urlsplit

import pytest
import requests

from tests.end_to_end import jobs
from tests.end_to_end.house import House
from tests.end_to_end.running_part import RunningPart, until

#: In no line of any of ours, whatever came before it.
SIGNED = re.compile(
    r"signature=(?!\*\*\*)|Bearer (?!\*\*\*)|X-Amz-Signature=(?!\*\*\*)", re.IGNORECASE
)


def lines(part: RunningPart) -> list[jobs.Json]:
    """Everything it ever said. Whatever is no JSON fails here."""
    return [json.loads(text) for text in part.log.read_text().splitlines()]


def ours(house: House) -> list[RunningPart]:
    parts = [house.web, house.control, *house.workers]
    return [part for part in parts if part.log.exists()]


def about(part: RunningPart, trace: str) -> list[jobs.Json]:
    return [line for line in lines(part) if line.get("trace_id") == trace]


def order_slow(house: House, trace: str) -> jobs.Json:
    body = {
        "effect_id": "slow-invert",
        "video_id": house.video_id,
        "inputs": {"seconds": 2.5 + secrets.randbelow(1000) / 1000},
        "idempotency_key": secrets.token_hex(),
    }
    headers = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}
    return house.customer.call("POST", "/api/ai-jobs", json=body, headers=headers)


@pytest.mark.slow
def test_one_trace_is_found_in_what_web_control_and_worker_say(one_worker: House) -> None:
    """Its worker is killed, so that the control worker has something to say, too."""
    house, trace = one_worker, secrets.token_hex(16)
    job_id = order_slow(house, trace)["id"]
    jobs.at_work(house, job_id)
    house.workers[0].kill()
    until("the control worker takes the lease back", lambda: about(house.control, trace))
    house.workers[0].start()
    jobs.require_completed(house, job_id)
    until("the worker says so", lambda: "completed" in str(about(house.workers[0], trace)))

    [ordered, *_] = about(house.web, trace)
    assert ordered["message"].startswith("POST /api/ai-jobs 201")
    paths = {line.get("path") for line in about(house.web, trace)}
    assert {"/api/worker/poll", "/api/worker/complete"} <= paths
    [lost] = about(house.control, trace)
    assert "ran out" in lost["message"]
    for part in (house.web, house.control, house.workers[0]):
        told = [line for line in about(part, trace) if "job_id" in line]
        assert {(line["job_id"], line["dispatch_id"]) for line in told} == {
            (job_id, ordered["dispatch_id"])
        }
    assert {row.details["trace_id"] for row in jobs.audited(house, job_id)} == {trace}


@pytest.mark.slow
def test_every_line_of_every_process_is_json_with_the_same_names(one_worker: House) -> None:
    house = one_worker
    jobs.require_completed(house, jobs.order_quick(house, colour=7))
    for part in ours(house):
        part.restart()  # what is said at the beginning and at the end is said in the same form
    jobs.require_completed(house, jobs.order_quick(house, colour=8))
    for part in (house.web, house.control, house.workers[0]):
        said = lines(part)
        assert said
        for line in said:
            assert {"time", "level", "logger", "message"} <= line.keys()
            assert not re.search(r"\x1b|Traceback", line["message"])
    loggers = {line["logger"].partition(".")[0] for part in ours(house) for line in lines(part)}
    assert loggers >= {"gunicorn", "celery", "gpu_worker"}


def throw_secrets(house: House, thrown: str) -> None:
    """At every door of the web processes, in every dress."""
    api, storage = house.stack.api_url, f"{house.stack.api_url}/storage/inputs/x.png"
    for url in (f"{api}/api/me", f"{api}/nowhere", f"{api}/healthz", storage, f"{api}/api/ai-jobs"):
        for method in ("GET", "POST", "PUT"):
            requests.request(
                method,
                f"{url}?signature={thrown}&token={thrown}",
                headers={"Authorization": f"Bearer {thrown}", "X-Fleet-Secret": thrown},
                json={"password": thrown, "token": thrown, thrown: [thrown]},
                timeout=20,
            )
    body = {"worker_id": "w", "fleet_slug": "gpu-default", "stage": "dev"}
    headers = {"X-Fleet-Secret": thrown}
    answer = requests.post(f"{api}/api/worker/register", json=body, headers=headers, timeout=20)
    assert answer.status_code == 401
    host = urlsplit(api)
    for text in (
        f"GET /x?signature={thrown}\r\n\r\n",
        f"NONSENSE /x?token={thrown} HTTP/9.9\r\n\r\n",
        f"GET /x HTTP/1.1\r\nAuthorization Bearer {thrown}\r\n\r\n",
        f"GET /x?token={thrown} HTTP/1.1\r\nContent-Length: token={thrown}\r\n\r\n",
    ):
        with socket.create_connection((host.hostname, host.port), timeout=20) as connection:
            connection.sendall(text.encode())
            connection.recv(4096)


def a_webhook_that_fails(house: House, thrown: str) -> str:
    """Nobody answers at its address, which holds a secret of its owner; returns its own."""
    url = f"https://nobody.invalid/hook?key={thrown}"
    new = {"url": url, "events": ["job.completed"]}
    endpoint = house.customer.call("POST", "/api/webhook-endpoints", json=new)
    own = f"/api/webhook-endpoints/{endpoint['id']}"
    house.customer.call("POST", f"{own}/test")
    until("a delivery failed", lambda: "was not taken" in house.control.log.read_text())
    house.customer.call("PATCH", own, json={"is_active": False})
    return str(endpoint["secret"])


@pytest.mark.slow
def test_no_secret_is_in_any_log_even_if_libraries_say_all_they_know(told_more: House) -> None:
    house, thrown = told_more, secrets.token_urlsafe(32)
    house.told["COMFYFLEET_LOG_LEVEL"] = "debug"
    house.restart_ours()
    throw_secrets(house, thrown)
    of_webhook = a_webhook_that_fails(house, thrown)
    jobs.require_completed(house, house.customer.order("image-blur", house.video_id)["id"])
    house.redis.kill()  # whoever speaks to it says that it can't
    job_id = jobs.order_slow(house, seconds=1)
    house.redis.start()
    jobs.require_completed(house, job_id)
    known = [
        thrown,
        of_webhook,
        house.customer.token,
        *(value for name, value in house.stack.secrets.items() if not name.endswith("email")),
        *(token.read_text() for token in house.stack.state.path.glob("gpu-*/*/token")),
    ]
    assert len(known) > 8
    assert {"debug"} <= {line["level"] for line in lines(house.workers[0])}
    for part in ours(house):
        said = part.log.read_text()
        assert [value for value in known if value in said] == []
        assert SIGNED.findall(said) == []
