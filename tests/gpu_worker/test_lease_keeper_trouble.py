"""Heartbeats that get no good answer; addresses that are asked for by heartbeat."""

from collections.abc import Iterator

import pytest

from gpu_worker.backend import LeaseLost, Unreachable
from gpu_worker.lease_keeper import CANCELLED, LOST
from tests.gpu_worker.backend_replies import Reply, dropped, problem, says, text
from tests.gpu_worker.backend_stand_in import BackendStandIn, backend_stand_in
from tests.gpu_worker.cached import wait_for
from tests.gpu_worker.kept_leases import NEVER, SOON, Kept, beats, interrupted, wait_for_beats


@pytest.fixture
def webapp() -> Iterator[BackendStandIn]:
    with backend_stand_in() as server:
        server.heartbeat["next_heartbeat_seconds"] = NEVER
        yield server


@pytest.fixture
def kept(webapp: BackendStandIn) -> Iterator[Kept]:
    kept = Kept(webapp)
    yield kept
    kept.close()


@pytest.mark.parametrize(
    "reply",
    [
        problem(503, "dependency_unavailable"),
        problem(422, "invalid_input"),
        dropped,
        text("<html>"),
        says({}),
        says({"cancel_requested": False, "draining": False, "next_heartbeat_seconds": "soon"}),
    ],
)
def test_after_any_trouble_it_goes_on_and_the_job_too(
    webapp: BackendStandIn, kept: Kept, reply: Reply
) -> None:
    webapp.script("heartbeat", reply)
    with kept.start(idle=SOON).hold(webapp.lease()) as held:
        wait_for_beats(webapp, 2)
        assert not held.stop.is_set()
    wait_for(lambda: kept.draining != [])


def test_locked_out_it_drops_its_job_until_it_is_let_in_again(
    webapp: BackendStandIn, kept: Kept
) -> None:
    webapp.script("heartbeat", problem(403, "forbidden"))
    keeper = kept.start()
    with keeper.hold(webapp.lease()) as held:
        assert interrupted(held) == LOST
        wait_for(lambda: kept.refused == [True])
    keeper.nudge()
    wait_for(lambda: kept.refused == [True, False])


def test_with_a_token_that_was_replaced_it_takes_no_tickets_and_works_on(
    webapp: BackendStandIn, kept: Kept
) -> None:
    webapp.script("heartbeat", problem(401, "unauthorized"))
    webapp.script("register", problem(409, "worker_id_taken"))
    with kept.start().hold(webapp.lease()) as held:
        wait_for(lambda: kept.refused == [True])
        assert not held.stop.is_set()


def test_it_outlives_a_listener_with_a_bug(webapp: BackendStandIn, kept: Kept) -> None:
    def buggy(_draining: bool) -> None:
        raise ValueError("a bug")

    kept.start(idle=SOON, on_draining=buggy)
    wait_for_beats(webapp, 3)


# Addresses for uploads


def test_addresses_are_asked_with_the_lease(webapp: BackendStandIn, kept: Kept) -> None:
    output = {"name": "a.png", "mime_type": "image/png", "size_bytes": 3, "sha256": "ab"}
    keeper = kept.start(first=NEVER)
    with keeper.hold(webapp.lease()) as held:
        assert keeper.ask_uploads(held, [output]) == [webapp.address(output)]
    assert beats(webapp) == [held.lease.proof | {"outputs": [output]}]


def test_asking_for_addresses_learns_and_fails_like_any_heartbeat(
    webapp: BackendStandIn, kept: Kept
) -> None:
    webapp.script("heartbeat", problem(503, "away"), problem(409, "lease_lost"))
    webapp.heartbeat |= {"cancel_requested": True, "uploads": None}
    keeper = kept.start(first=NEVER)
    with keeper.hold(webapp.lease()) as held:
        for expected in (Unreachable, LeaseLost):
            with pytest.raises(expected):
                keeper.ask_uploads(held, [])
        assert keeper.ask_uploads(held, []) == []
        assert interrupted(held) == CANCELLED
