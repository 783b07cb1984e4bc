"""Results that storage does not take at once, or that are not wanted any more."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_worker.backend import LeaseLost, Refused
from gpu_worker.lease_keeper import CANCELLED, STOPPING
from gpu_worker.provider import JobFailed, Stopped, Unwell
from scripts.server_process import free_port
from tests.gpu_worker.backend_replies import Reply, dropped, problem, text
from tests.gpu_worker.backend_stand_in import BackendStandIn, backend_stand_in
from tests.gpu_worker.cached import wait_for
from tests.gpu_worker.outbox import RESULT, Outbox, outbox_of, place, slow_storage


@pytest.fixture
def webapp() -> Iterator[BackendStandIn]:
    with backend_stand_in() as server:
        yield server


@pytest.fixture
def outbox(webapp: BackendStandIn, tmp_path: Path) -> Iterator[Outbox]:
    with outbox_of(webapp, tmp_path) as outbox:
        yield outbox


# Tried again


@pytest.mark.parametrize(
    "reply",
    [
        text("<Error>SlowDown</Error>", status=503),
        text("<Error>RequestTimeTooSkewed</Error>", status=403),
        dropped,
        text("", status=302, Location="/storage/elsewhere"),
    ],
)
def test_what_storage_did_not_take_is_sent_again(
    webapp: BackendStandIn, outbox: Outbox, reply: Reply
) -> None:
    webapp.script(RESULT, reply, reply)
    outbox.send(outbox.made("a.png", b"content"))
    assert [put.content for put in webapp.calls(RESULT)] == [b"content"] * 3
    assert webapp.stored == {"/storage/result": b"content"}
    assert webapp.calls("GET /storage/elsewhere") == []


def test_an_address_that_ran_out_is_replaced(webapp: BackendStandIn, outbox: Outbox) -> None:
    webapp.always(RESULT, text("<Error>AccessDenied</Error>", status=403))
    webapp.heartbeat |= {
        "output_url": f"{webapp.url}/storage/fresh",
        "output_headers": {"Content-Type": "image/png"},
    }
    outbox.send(outbox.made("a.png", b"content"))
    assert webapp.stored == {"/storage/fresh": b"content"}


def test_of_several_only_those_missing_are_sent_again(
    webapp: BackendStandIn, outbox: Outbox
) -> None:
    webapp.script(f"PUT {place(b'two')}", text("", status=403))
    outbox.send(outbox.made("1.png", b"one"), outbox.made("2.png", b"two"))
    assert len(webapp.calls(f"PUT {place(b'one')}")) == 1
    assert len(webapp.calls(f"PUT {place(b'two')}")) == 2
    assert len(webapp.calls("heartbeat")) >= 2  # the second time with fresh addresses
    assert webapp.stored == {place(b"one"): b"one", place(b"two"): b"two"}


def test_a_webapp_that_is_away_is_asked_again_for_addresses(
    webapp: BackendStandIn, outbox: Outbox
) -> None:
    webapp.script("heartbeat", problem(503, "dependency_unavailable"), dropped)
    outbox.send(outbox.made("a.txt", b"text", "text/plain"))
    assert webapp.stored == {place(b"text"): b"text"}


def test_storage_that_is_away_and_comes_back(webapp: BackendStandIn, outbox: Outbox) -> None:
    port = free_port()
    outbox.held.output_url = f"http://127.0.0.1:{port}/storage/result"
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(outbox.send, outbox.made("a.png", b"content"))
        with backend_stand_in(port) as storage:
            sent.result(timeout=20)
            assert storage.stored == {"/storage/result": b"content"}


# Given up


def test_patience_has_an_end(webapp: BackendStandIn, outbox: Outbox) -> None:
    webapp.always(RESULT, text("", status=500))
    with pytest.raises(Unwell, match="could not be uploaded"):
        outbox.send(outbox.made("a.png", b"content"), patience_seconds=0.3)
    assert len(webapp.calls(RESULT)) > 1


def test_the_deadline_of_the_job_ends_the_tries(webapp: BackendStandIn, outbox: Outbox) -> None:
    webapp.always(RESULT, text("", status=500))
    with pytest.raises(JobFailed, match=r"limit of 0\.5 seconds") as failed:
        replace(outbox, deadline_seconds=0.5).send(outbox.made("a.png", b"content"))
    assert failed.value.code == "deadline_exceeded"


def test_a_stop_ends_the_tries(webapp: BackendStandIn, outbox: Outbox) -> None:
    webapp.always(RESULT, text("", status=500))
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(outbox.send, outbox.made("a.png", b"content"))
        wait_for(lambda: len(webapp.calls(RESULT)) > 0)
        outbox.held.interrupt(STOPPING)
        with pytest.raises(Stopped):
            sent.result(timeout=10)


def test_a_stop_ends_an_upload_in_the_middle(outbox: Outbox) -> None:
    made = outbox.made("a.png", bytes(32_000_000))  # more than fits into sockets
    with slow_storage() as (url, began):
        outbox.held.output_url = url
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(outbox.send, made)
            assert began.wait(10)
            outbox.held.interrupt(STOPPING)
            with pytest.raises(Stopped):
                sent.result(timeout=10)


def test_a_job_cancelled_before_its_addresses_came_is_stopped(
    webapp: BackendStandIn, outbox: Outbox
) -> None:
    webapp.heartbeat |= {"cancel_requested": True, "uploads": None}
    with pytest.raises(Stopped):
        outbox.send(outbox.made("a.txt", b"text", "text/plain"))
    assert outbox.held.why == CANCELLED
    assert webapp.stored == {}


def test_what_may_not_be_stored_is_the_jobs_own_fault(
    webapp: BackendStandIn, outbox: Outbox
) -> None:
    webapp.script("heartbeat", problem(422, "invalid_input", "At most 5 bytes a file."))
    with pytest.raises(JobFailed, match=r"can't be stored: At most 5 bytes a file\."):
        outbox.send(outbox.made("a.txt", b"longer", "text/plain"))


def test_other_refusals_and_a_lost_lease_are_passed_on(
    webapp: BackendStandIn, outbox: Outbox
) -> None:
    webapp.script("heartbeat", problem(403, "forbidden"), problem(409, "lease_lost"))
    for expected in (Refused, LeaseLost):
        with pytest.raises(expected):
            outbox.send(outbox.made("a.txt", b"text", "text/plain"))
