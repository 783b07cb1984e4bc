"""Whatever lies in a fleet's queue: no job runs twice, and the worker goes on as it is."""

import base64
import json
import pickle
from typing import Any

import pytest
from redis import Redis

from scripts.stack import FLEET
from tasks.tickets import TicketForm
from tests.end_to_end import jobs
from tests.end_to_end.house import House
from tests.end_to_end.running_part import until


def ticket(job_id: str = "some-dispatch") -> dict[str, Any]:
    message: dict[str, Any] = json.loads(TicketForm(FLEET).fill(job_id, ""))
    return message


def with_body(body: bytes, **properties: str) -> bytes:
    message = ticket() | {"body": base64.b64encode(body).decode()}
    return json.dumps(message | properties).encode()


def without(name: str) -> bytes:
    message = ticket()
    del message[name]
    return json.dumps(message).encode()


def with_header(name: str, value: Any) -> bytes:
    message = ticket()
    message["headers"][name] = value
    return json.dumps(message).encode()


class Bomb:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._path, "w")


NOT_OURS = {
    "an unknown task": with_header("task", "os.system"),
    "bytes that are no text": b"\x00\xff\xfe garbage \x80",
    "an empty message": b"",
    "text that is no JSON": b"not json {",
    "a list": b"[1, 2, 3]",
    "a number": b"5",
    "lists in lists without end": b"[" * 100_000,
    "null": b"null",
    "an empty object": b"{}",
    "a body that is no base64": json.dumps(ticket() | {"body": "%%%no base64%%%"}).encode(),
    "a body that is a number": json.dumps(ticket() | {"body": 5}).encode(),
    "a body that is no JSON": with_body(b"not json"),
    "a body of another shape": with_body(b"5"),
    "a body that is nothing": with_body(b"null"),
    "a body of lists in lists": with_body(b"[" * 100_000),
    "arguments of another shape": with_body(b'["text", 7, null]'),
    "no properties": without("properties"),
    "no headers": without("headers"),
    "no body": without("body"),
    "properties of another shape": json.dumps(ticket() | {"properties": [1]}).encode(),
    "headers of another shape": json.dumps(ticket() | {"headers": "none"}).encode(),
    "a time in 2099": with_header("eta", "2099-01-01T00:00:00+00:00"),
    "a time that is none": with_header("eta", "soon"),
    "an unknown content type": with_body(b"x", **{"content-type": "application/x-unknown"}),
}


def put(redis: Redis, *messages: bytes) -> None:
    redis.lpush(FLEET, *messages)


@pytest.mark.parametrize("message", NOT_OURS.values(), ids=NOT_OURS)
def test_a_message_that_is_not_ours_does_not_end_the_worker(
    one_worker: House, message: bytes
) -> None:
    house = one_worker
    pid = house.workers[0].pid
    with house.redis_client() as redis:
        put(redis, message)
        until("it was taken", lambda: not redis.llen(FLEET))

    jobs.require_completed(house, jobs.order_quick(house))
    assert (house.workers[0].is_running, house.workers[0].pid) == (True, pid)


def test_a_pickle_is_refused_unopened(one_worker: House) -> None:
    house = one_worker
    proof = house.stack.state.path / "unpickled"
    pid = house.workers[0].pid
    pickled = {"content-type": "application/x-python-serialize"}
    with house.redis_client() as redis:
        put(redis, with_body(pickle.dumps(Bomb(str(proof))), **pickled))
        until("it was taken", lambda: not redis.llen(FLEET))

    jobs.require_completed(house, jobs.order_quick(house))
    assert (house.workers[0].is_running, house.workers[0].pid) == (True, pid)
    assert not proof.exists()


def test_the_same_ticket_twice_is_one_run(two_workers: House) -> None:
    house = two_workers
    job_id = jobs.order_slow(house, seconds=2)
    dispatch = jobs.dispatch_of(house, job_id)
    assert dispatch is not None
    again = TicketForm(FLEET).fill(str(dispatch.id), "").encode()
    with house.redis_client() as redis:
        put(redis, again, again)
        jobs.require_completed(house, job_id)
        until("all tickets were taken", lambda: not redis.llen(FLEET))

    assert jobs.times_posted(house, job_id) == jobs.attempts(house, job_id) == 1


def test_many_jobs_on_two_workers_run_once_each(two_workers: House) -> None:
    house = two_workers
    ordered = [jobs.order_quick(house, colour=colour) for colour in range(100, 120)]

    jobs.require_completed(house, *ordered)
    assert all(jobs.times_posted(house, job_id) == 1 for job_id in ordered)
