"""The stream of a job, behind a real gunicorn and over real HTTP."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import requests
from redis import Redis

from models import dispatches, jobs, lanes
from models.users import Role
from scripts.cli_serve import gunicorn_command
from scripts.server_process import free_port
from tasks import catalog, outcomes, submission
from tasks.backend import Backend
from tests.fixtures import Person, make_person
from tests.webapp.event_client import Told, watching

Serve = Callable[..., str]
_running: dict[str, subprocess.Popen[bytes]] = {}  # gunicorns by their addresses


@pytest.fixture
def demo(postgres: Backend) -> Backend:
    """On PostgreSQL only: what is shown here is between HTTP and threads."""
    catalog.seed_demo(postgres)
    return postgres


@pytest.fixture
def serve(demo: Backend, tmp_path: Path) -> Iterator[Serve]:
    """The application behind gunicorn; its address."""

    def start(*, workers: int = 1, threads: int = 1, **settings: object) -> str:
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        changed = replace(demo.settings, public_url=address, **settings)
        given = {f"COMFYFLEET_{name.upper()}": str(value) for name, value in vars(changed).items()}
        log = tmp_path / f"gunicorn-{port}.log"
        command = gunicorn_command(
            host="127.0.0.1", port=port, workers=workers, threads=threads, graceful_seconds=2
        )
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=os.environ | given, stdout=output, stderr=output
            )
        _running[address] = process
        for _ in range(300):
            try:
                requests.get(f"{address}/healthz", timeout=1)
                return address
            except requests.RequestException:
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
        raise AssertionError(log.read_text())

    yield start
    for address in list(_running):
        stop(address)


def stop(address: str) -> None:
    process = _running.pop(address)
    process.send_signal(signal.SIGTERM)
    process.wait(60)


def order(backend: Backend, who: Person, key: str = "k") -> UUID:
    request = submission.Request(
        tenant_id=who.tenant_id,
        user_id=who.user_id,
        effect="colour-card",
        idempotency_key=key,
        inputs={},
    )
    return submission.submit(backend, request).job.id


def lease(backend: Backend, job_id: UUID, who: Person) -> dispatches.Lease:
    with backend.databases.central() as session:
        row = dispatches.find_by_job(session, who.tenant_id, job_id)
    assert row is not None
    with backend.databases.central() as session:
        leased = lanes.lease(
            session,
            fleet_id=row.fleet_id,
            providers=["self_hosted"],
            workflow_ids=[row.workflow_id],
            worker_id="w",
            lease_seconds=60,
        )
    assert leased is not None
    assert leased.lease_token is not None
    with backend.databases.tenant(who.tenant_id) as session:
        jobs.start(session, job_id)
    backend.news.tell(job_id)
    return dispatches.Lease(leased.id, leased.lease_token)


def move_on(backend: Backend, held: dispatches.Lease, job_id: UUID, progress: float) -> None:
    with backend.databases.central() as session:
        dispatches.extend(session, held, seconds=60, progress=progress)
    backend.news.tell(job_id)


def stream_of(address: str, job_id: UUID) -> str:
    return f"{address}/api/ai-jobs/{job_id}/events"


def states(told: list[Told]) -> list[tuple[str, str, float]]:
    return [(one.name, one.data["status"], one.data["progress"]) for one in told]


def test_a_job_is_told_from_its_order_to_its_end(demo: Backend, serve: Serve) -> None:
    address, ada = serve(), make_person(demo, tokens=100)
    job_id = order(demo, ada)
    with watching(stream_of(address, job_id), ada.headers) as events:
        told = [next(events)]
        held = lease(demo, job_id, ada)
        told.append(next(events))
        move_on(demo, held, job_id, 0.5)
        told.append(next(events))
        outcomes.complete(demo, held, outputs=[])
        told += list(events)  # until the server ends it
    assert states(told) == [
        ("status", "queued", 0.0),
        ("status", "processing", 0.0),
        ("progress", "processing", 0.5),
        ("status", "completed", 1.0),
    ]
    shown = requests.get(f"{address}/api/ai-jobs/{job_id}", headers=ada.headers, timeout=10)
    assert told[-1].data == shown.json()


def test_a_client_that_comes_back_is_told_what_it_missed_and_nothing_twice(
    demo: Backend, serve: Serve
) -> None:
    address, ada = serve(), make_person(demo, tokens=100)
    job_id = order(demo, ada)
    with watching(stream_of(address, job_id), ada.headers) as events:
        first = next(events)
    held = lease(demo, job_id, ada)
    resumed = ada.headers | {"Last-Event-ID": first.id}
    with watching(stream_of(address, job_id), resumed) as events:
        missed = next(events)
        assert (missed.name, missed.data["status"]) == ("status", "processing")
    resumed = ada.headers | {"Last-Event-ID": missed.id}
    with watching(stream_of(address, job_id), resumed) as events:
        move_on(demo, held, job_id, 0.25)
        assert states([next(events)]) == [("progress", "processing", 0.25)]
        outcomes.cancel(demo, ada.tenant_id, job_id)
        last = next(events)
    assert last.data["status"] == "cancelled"
    ended = requests.get(
        stream_of(address, job_id), headers=ada.headers | {"Last-Event-ID": last.id}, timeout=10
    )
    assert (ended.status_code, ended.content) == (204, b"")


def test_open_streams_hold_no_thread_of_the_web_server(demo: Backend, serve: Serve) -> None:
    address, ada = serve(workers=1, threads=1), make_person(demo, tokens=100)
    job_id = order(demo, ada)
    with opened(address, job_id, ada, count=12) as connections:
        for _ in range(3):
            me = requests.get(f"{address}/api/me", headers=ada.headers, timeout=5)
            assert me.status_code == 200
        outcomes.cancel(demo, ada.tenant_id, job_id)
        for connection in connections:
            text = read_to_end(connection)
            assert b'"status": "cancelled"' in text
            assert text.endswith(b"0\r\n\r\n")


@contextmanager
def opened(address: str, job_id: UUID, who: Person, *, count: int) -> Iterator[list[socket.socket]]:
    host, port = address.removeprefix("http://").split(":")
    connections = []
    for _ in range(count):
        connection = socket.create_connection((host, int(port)), timeout=20)
        connection.sendall(
            f"GET /api/ai-jobs/{job_id}/events HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {who.token}\r\n\r\n".encode()
        )
        head = connection.recv(65536)
        assert head.startswith(b"HTTP/1.1 200 OK"), head
        connections.append(connection)
    yield connections
    for connection in connections:
        connection.close()


def read_to_end(connection: socket.socket) -> bytes:
    text = b""
    while chunk := connection.recv(65536):
        text += chunk
    return text


def test_without_redis_the_databases_are_looked_at_all_the_same(
    demo: Backend, serve: Serve
) -> None:
    address = serve(redis_url="redis://127.0.0.1:1/0")
    ada = make_person(demo, tokens=100)
    job_id = order(demo, ada)
    with watching(stream_of(address, job_id), ada.headers) as events:
        assert next(events).data["status"] == "queued"
        outcomes.cancel(demo, ada.tenant_id, job_id)
        assert next(events).data["status"] == "cancelled"


def test_news_that_got_lost_cost_some_seconds(demo: Backend, serve: Serve, redis_url: str) -> None:
    address, ada = serve(), make_person(demo, tokens=100)
    ahead, job_id = order(demo, ada, "first"), order(demo, ada, "second")
    with watching(stream_of(address, job_id), ada.headers) as events:
        assert next(events).data["queue_position"] == 1
        with Redis.from_url(redis_url) as redis:
            redis.client_kill_filter(_type="pubsub")
        with demo.databases.tenant(ada.tenant_id) as session:  # nobody tells of this
            ended = jobs.cancel(session, ahead)
        with demo.databases.central() as session:
            row = dispatches.find_by_job(session, ada.tenant_id, ahead)
            assert row is not None
            dispatches.cancel(session, row.id)
        assert not ended.is_active
        moved = next(events)
    assert (moved.name, moved.data["queue_position"]) == ("progress", 0)


def test_too_many_streams_of_a_user_are_refused_and_a_closed_one_makes_room(
    demo: Backend, serve: Serve
) -> None:
    address, ada = serve(max_user_streams=2), make_person(demo, tokens=100)
    job_id = order(demo, ada)
    with opened(address, job_id, ada, count=2):
        refused = requests.get(stream_of(address, job_id), headers=ada.headers, timeout=10)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
        assert int(refused.headers["Retry-After"]) >= 1
    deadline = time.monotonic() + 10
    while (
        code := requests.head(
            stream_of(address, job_id), headers=ada.headers, timeout=10
        ).status_code
    ) != 200 or not _opens(address, job_id, ada):
        assert time.monotonic() < deadline, code
        time.sleep(0.1)


def _opens(address: str, job_id: UUID, who: Person) -> bool:
    with requests.get(
        stream_of(address, job_id), headers=who.headers, stream=True, timeout=10
    ) as answer:
        return answer.status_code == 200


def test_a_server_that_stops_ends_its_streams_and_they_are_resumed_at_another(
    demo: Backend, serve: Serve
) -> None:
    address, ada = serve(), make_person(demo, tokens=100)
    job_id = order(demo, ada)
    with opened(address, job_id, ada, count=3) as connections:
        stop(address)
        for connection in connections:
            assert read_to_end(connection).endswith(b"0\r\n\r\n")
    elsewhere = serve()
    with watching(stream_of(elsewhere, job_id), ada.headers) as events:
        assert next(events).data["status"] == "queued"


def test_somebody_elses_job_is_not_found(demo: Backend, serve: Serve) -> None:
    address, ada, eve = serve(), make_person(demo, tokens=100), make_person(demo)
    answer = requests.get(stream_of(address, order(demo, ada)), headers=eve.headers, timeout=10)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert requests.get(stream_of(address, order(demo, ada)), timeout=10).status_code == 401


def test_operators_see_everything_live(demo: Backend, serve: Serve) -> None:
    address, ada = serve(), make_person(demo, tokens=100)
    admin = make_person(demo, role=Role.ADMIN)
    url = f"{address}/api/admin/events"
    with watching(url, admin.headers) as events:
        first = next(events)
        assert (first.name, first.data["running"]) == ("overview", [])
        job_id = order(demo, ada)
        told = until_told(events, lambda data: data["fleets"][0]["waiting"] == 1)
        lease(demo, job_id, ada)
        told = until_told(events, lambda data: data["running"])
        [running] = told.data["running"]
        assert (running["job_id"], running["status"]) == (str(job_id), "leased")
        outcomes.cancel(demo, ada.tenant_id, job_id)
        told = until_told(events, lambda data: not data["running"])
        assert told.data["latest"][0]["event"] == "job.cancel"
    resumed = admin.headers | {"Last-Event-ID": told.id}
    with watching(url, resumed) as events:
        order(demo, ada, "another")
        assert until_told(events, lambda data: data["fleets"][0]["waiting"] == 1).id != told.id
    refused = requests.get(url, headers=ada.headers, timeout=10)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def until_told(events: Iterator[Told], holds: Callable[[dict[str, Any]], object]) -> Told:
    for _ in range(20):
        if holds((told := next(events)).data):
            return told
    raise AssertionError(told)
