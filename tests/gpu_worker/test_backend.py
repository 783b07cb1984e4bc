"""The worker's client of the webapp: what each answer, and each trouble, means to it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu_worker.backend import Backend, LeaseLost, Refused
from tests.gpu_worker.backend_replies import Request, problem, says, when
from tests.gpu_worker.backend_stand_in import SECRET, BackendStandIn, backend_stand_in, membership
from tests.gpu_worker.cached import wait_for


@pytest.fixture
def webapp() -> Iterator[BackendStandIn]:
    with backend_stand_in() as server:
        yield server


# Joining


def test_it_joins_with_the_secret_and_keeps_its_token(webapp: BackendStandIn) -> None:
    kept: list[str] = []
    backend = webapp.backend(on_token=kept.append)
    [asked] = webapp.calls("register")
    assert asked.headers["x-fleet-secret"] == SECRET
    assert "authorization" not in asked.headers
    assert asked.body == {
        "worker_id": "w1",
        "fleet_slug": "cards",
        "stage": "dev",
        "max_concurrency": 1,
        "providers": ["small"],
        "capabilities": {"gpu": "none"},
    }
    assert (backend.token, kept) == ("token-1", ["token-1"])


def test_it_shows_the_token_it_had_before(webapp: BackendStandIn) -> None:
    webapp.backend(token="of-before").register()
    assert webapp.calls("register")[0].token == "of-before"


def test_a_wrong_secret_is_refused(webapp: BackendStandIn) -> None:
    stranger = Backend(webapp.url, membership(fleet_secret="guessed"))
    with pytest.raises(Refused, match="unauthorized: It does not open") as refused:
        stranger.register()
    assert (refused.value.status, refused.value.code) == (401, "unauthorized")
    assert len(webapp.calls("register")) == 1


def test_the_address_may_end_with_a_slash(webapp: BackendStandIn) -> None:
    Backend(webapp.url + "/", membership()).register()
    assert webapp.names() == ["register"]


# A token that is not known any more


def test_an_unknown_token_is_replaced_and_the_call_repeated(webapp: BackendStandIn) -> None:
    backend = webapp.backend()
    webapp.tokens.clear()
    assert backend.complete(webapp.lease(), outputs=[]) == "completed"
    assert webapp.names() == ["register", "complete", "register", "complete"]
    first, again = webapp.calls("complete")
    assert first.content == again.content
    assert webapp.calls("register")[1].token == first.token == "token-1"
    assert again.token == backend.token == "token-2"


MADE = {"name": "", "mime_type": "image/png", "size_bytes": 1, "sha256": "0" * 64}


def test_what_no_database_takes_is_replaced_in_every_text(webapp: BackendStandIn) -> None:
    backend, odd, fit = webapp.backend(), "a\0b\ud800c\udfffd \U0001f600", "a�b�c�d \U0001f600"
    backend.heartbeat(webapp.lease(), current_node=odd, outputs=[MADE | {"name": odd}])
    backend.fail(webapp.lease(), error=odd, trace=odd, retryable=True)
    backend.requeue(webapp.lease(), reason=odd)
    beat, failed, requeued = (webapp.calls(n)[0].body for n in ("heartbeat", "fail", "requeue"))
    assert (beat["current_node"], beat["outputs"]) == (fit, [MADE | {"name": fit}])
    assert (failed["error"], failed["trace"], failed["retryable"]) == (fit, fit, True)
    assert requeued["reason"] == fit


def test_no_text_is_longer_than_the_webapp_keeps(webapp: BackendStandIn) -> None:
    webapp.backend().fail(webapp.lease(), error="e", trace="x" * 10**6, retryable=True)
    assert webapp.calls("fail")[0].body["trace"] == "x" * 20_000


def test_two_threads_with_an_unknown_token_register_once(webapp: BackendStandIn) -> None:
    backend = webapp.backend()
    webapp.tokens.clear()
    both_came = threading.Barrier(2, timeout=10)

    def refused_together(request: Request) -> None:
        both_came.wait()
        webapp.usual(request)

    webapp.script("heartbeat", refused_together, refused_together)
    with ThreadPoolExecutor(2) as pool:
        for answered in [pool.submit(backend.heartbeat) for _ in range(2)]:
            assert answered.result(timeout=10)["draining"] is False
    assert len(webapp.calls("register")) == 2
    assert len(webapp.calls("heartbeat")) == 4


def test_a_call_refused_again_with_the_new_token_is_not_repeated_for_ever(
    webapp: BackendStandIn,
) -> None:
    backend = webapp.backend()
    webapp.always("heartbeat", problem(401, "unauthorized"))
    with pytest.raises(Refused):
        backend.heartbeat()
    assert webapp.names() == ["register", "heartbeat", "register", "heartbeat"]


def test_a_token_that_an_operator_gave_it_is_used_before_it_registers_anew(
    webapp: BackendStandIn,
) -> None:
    given = ["token-1"]
    backend = webapp.backend(kept_token=lambda: given[0])
    webapp.tokens.clear()
    given[0] = "rotated"
    webapp.tokens.add("rotated")
    assert backend.complete(webapp.lease(), outputs=[]) == "completed"
    assert webapp.names() == ["register", "complete", "complete"]
    assert backend.token == "rotated"

    webapp.tokens.clear()  # that one is known no more, and nobody gave it another
    assert backend.poll() is None
    assert webapp.names()[-3:] == ["poll", "register", "poll"]


def test_a_worker_that_may_not_come_back_says_so(webapp: BackendStandIn) -> None:
    backend = webapp.backend()
    webapp.tokens.clear()
    webapp.script("register", problem(403, "forbidden"))
    with pytest.raises(Refused, match="forbidden"):
        backend.poll()
    assert backend.token == "token-1"


def test_who_has_left_does_not_come_back_by_a_late_call(webapp: BackendStandIn) -> None:
    backend = webapp.backend()
    backend.deregister()
    webapp.tokens.clear()
    with pytest.raises(Refused, match="unauthorized"):
        backend.complete(webapp.lease(), outputs=[])
    assert len(webapp.calls("register")) == 1


def test_a_call_under_way_while_it_leaves_does_not_bring_it_back(webapp: BackendStandIn) -> None:
    backend = webapp.backend()
    has_left = threading.Event()
    webapp.script("heartbeat", when(has_left, problem(401, "unauthorized")))
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(backend.heartbeat)
        wait_for(lambda: len(webapp.calls("heartbeat")) == 1)
        backend.deregister()
        has_left.set()
        with pytest.raises(Refused):
            late.result(timeout=10)
    assert len(webapp.calls("register")) == 1


# Leases and reports


def test_nothing_to_do_is_no_lease(webapp: BackendStandIn) -> None:
    assert webapp.backend().poll() is None
    assert webapp.calls("poll")[0].body == {
        "providers": ["small"],
        "current_load": 0,
        "max_concurrency": 1,
        "holds_nothing": True,
    }


def test_a_lease_has_all_it_takes(webapp: BackendStandIn) -> None:
    backend = webapp.backend()
    webapp.script("poll", says(webapp.lease_answer(workflow="more", than_we="know")))
    lease = backend.poll()
    assert lease == webapp.lease()
    assert lease is not None
    assert lease.proof == {"dispatch_id": "dispatch-1", "lease_token": "lease-1"}


def test_every_report_carries_the_lease(webapp: BackendStandIn) -> None:
    backend, lease = webapp.backend(), webapp.lease()
    assert backend.complete(lease, outputs=[{"name": "ä.png"}]) == "completed"
    assert backend.fail(lease, error="No.", retryable=False) == "failed"
    assert backend.requeue(lease, reason="spot") == "queued"
    backend.heartbeat(lease, progress=0.5)
    backend.heartbeat()
    *reports, idle = [asked.body for asked in webapp.asked[1:]]
    assert all(body["lease_token"] == "lease-1" for body in reports)
    assert reports[0]["outputs"] == [{"name": "ä.png"}]
    assert idle == {}


def test_a_lost_lease_is_told_apart_from_other_conflicts(webapp: BackendStandIn) -> None:
    backend, lease = webapp.backend(), webapp.lease()
    webapp.script("complete", problem(409, "lease_lost", "It is another's."))
    with pytest.raises(LeaseLost, match=r"It is another's\."):
        backend.complete(lease, outputs=[])
    webapp.script("complete", problem(409, "worker_id_taken"))
    with pytest.raises(Refused) as refused:
        backend.complete(lease, outputs=[])
    assert (refused.value.status, refused.value.code) == (409, "worker_id_taken")


def test_a_refusal_has_its_code_and_sentence(webapp: BackendStandIn) -> None:
    webapp.script("fail", problem(422, "invalid_input", "Not so."))
    with pytest.raises(Refused, match=r"^invalid_input: Not so\.$"):
        webapp.backend().fail(webapp.lease(), error="", retryable=True)


# Leaving, and threads


def test_leaving_when_it_is_not_known_is_refused_and_registers_nothing(
    webapp: BackendStandIn,
) -> None:
    backend = webapp.backend()
    webapp.tokens.clear()
    with pytest.raises(Refused):
        backend.deregister()
    assert webapp.names() == ["register", "deregister"]


def each_thread(work: Callable[[], object], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result(timeout=20)


def test_threads_share_it(webapp: BackendStandIn) -> None:
    backend = webapp.backend()
    each_thread(lambda: [backend.heartbeat() for _ in range(10)], threads=4)
    assert len(webapp.calls("heartbeat")) == 40


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GIVEN = f"00-{TRACE}-00f067aa0ba902b7-01"


def test_every_call_about_a_job_carries_its_trace(webapp: BackendStandIn) -> None:
    backend, lease = webapp.backend(), webapp.lease(trace=GIVEN)
    backend.poll(GIVEN)  # the trace of the ticket
    backend.heartbeat(lease, progress=0.5)
    backend.complete(lease, outputs=[])
    backend.fail(lease, error="e", retryable=True)
    backend.requeue(lease, reason="r")
    about = [asked for asked in webapp.asked if asked.name != "register"]
    assert [asked.headers["traceparent"] for asked in about] == [GIVEN] * 5
    assert lease.ids == {"job_id": "job-1", "dispatch_id": "dispatch-1", "trace_id": TRACE}


def test_a_call_that_is_repeated_after_registering_anew_is_in_the_trace(
    webapp: BackendStandIn,
) -> None:
    backend = webapp.backend(token="unknown")
    backend.complete(webapp.lease(trace=GIVEN), outputs=[])
    assert [asked.headers["traceparent"] for asked in webapp.calls("complete")] == [GIVEN] * 2


@pytest.mark.parametrize("trace", [None, "", "hello", GIVEN + "\r\nX-Evil: yes"])
def test_a_lease_without_a_trace_that_can_be_read_is_a_lease(
    webapp: BackendStandIn, trace: str | None
) -> None:
    lease = webapp.lease(trace=trace)
    webapp.backend().complete(lease, outputs=[])
    assert not {"traceparent", "x-evil"} & webapp.calls("complete")[0].headers.keys()
    assert lease.ids["trace_id"] is None


def test_what_is_about_no_job_has_no_trace(webapp: BackendStandIn) -> None:
    backend = webapp.backend()
    backend.heartbeat()
    backend.poll()
    assert not any("traceparent" in asked.headers for asked in webapp.asked)
