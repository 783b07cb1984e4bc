"""Heartbeats: when they are sent, what they bring, and what the job learns from the answer."""

import threading
from collections.abc import Iterator

import pytest

from gpu_worker.lease_keeper import CANCELLED, LOST, STOPPING, Held
from tests.gpu_worker.backend_replies import problem, when
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


# When, and with what


def test_an_idle_worker_says_that_it_is_there(webapp: BackendStandIn, kept: Kept) -> None:
    kept.start(idle=SOON)
    assert wait_for_beats(webapp, 1) == [{}]


def test_a_job_brings_its_progress_along(webapp: BackendStandIn, kept: Kept) -> None:
    webapp.heartbeat["next_heartbeat_seconds"] = SOON
    with kept.start().hold(webapp.lease()) as held:
        first = wait_for_beats(webapp, 1)[0]
        held.progress(0.25, "KSampler")
        wait_for(lambda: beats(webapp)[-1]["progress"] == 0.25)
        last = beats(webapp)[-1]
    assert first == {"dispatch_id": "dispatch-1", "lease_token": "lease-1", "progress": 0.0}
    assert last == first | {"progress": 0.25, "current_node": "KSampler"}


def test_a_very_long_name_of_a_node_is_cut(webapp: BackendStandIn, kept: Kept) -> None:
    keeper = kept.start(first=NEVER)
    with keeper.hold(webapp.lease()) as held:
        held.progress(0.5, "ä" * 1000)
        keeper.nudge()
        assert wait_for_beats(webapp, 1)[0]["current_node"] == "ä" * 200


def test_the_next_one_comes_when_the_webapp_says(webapp: BackendStandIn, kept: Kept) -> None:
    webapp.heartbeat["next_heartbeat_seconds"] = SOON
    with kept.start().hold(webapp.lease()):
        wait_for_beats(webapp, 3)


def test_after_the_job_the_worker_is_idle(webapp: BackendStandIn, kept: Kept) -> None:
    keeper = kept.start(idle=0.3)
    with keeper.hold(webapp.lease()) as held:
        wait_for_beats(webapp, 1)
        assert keeper.held is held
    assert keeper.held is None
    assert wait_for_beats(webapp, 2)[-1] == {}


def test_short_jobs_do_not_keep_heartbeats_from_being_sent(
    webapp: BackendStandIn, kept: Kept
) -> None:
    webapp.heartbeat["next_heartbeat_seconds"] = SOON
    keeper = kept.start(idle=0.1, first=NEVER)

    def has_beaten_after_another_job() -> bool:
        with keeper.hold(webapp.lease()):
            pass
        return len(beats(webapp)) >= 3

    wait_for(has_beaten_after_another_job)


def test_a_nudge_asks_at_once(webapp: BackendStandIn, kept: Kept) -> None:
    keeper = kept.start(first=NEVER)
    with keeper.hold(webapp.lease()):
        keeper.nudge()
        assert wait_for_beats(webapp, 1)[0]["dispatch_id"] == "dispatch-1"


def test_a_nudge_during_a_heartbeat_asks_once_more(webapp: BackendStandIn, kept: Kept) -> None:
    keeper, answer = kept.start(first=NEVER), threading.Event()
    webapp.script("heartbeat", when(answer, webapp.usual))
    keeper.nudge()
    wait_for_beats(webapp, 1)
    keeper.nudge()
    answer.set()
    wait_for_beats(webapp, 2)


def test_a_heartbeat_under_way_does_not_put_off_that_of_a_new_job(
    webapp: BackendStandIn, kept: Kept
) -> None:
    keeper, answer = kept.start(idle=SOON), threading.Event()
    webapp.script("heartbeat", when(answer, webapp.usual))
    wait_for_beats(webapp, 1)
    with keeper.hold(webapp.lease()):
        answer.set()
        assert wait_for_beats(webapp, 2)[-1]["dispatch_id"] == "dispatch-1"


# What is learned


def test_a_cancelled_job_is_interrupted(webapp: BackendStandIn, kept: Kept) -> None:
    webapp.heartbeat["cancel_requested"] = True
    with kept.start().hold(webapp.lease()) as held:
        assert interrupted(held) == CANCELLED


def test_a_job_whose_lease_is_lost_is_interrupted(webapp: BackendStandIn, kept: Kept) -> None:
    webapp.script("heartbeat", problem(409, "lease_lost"))
    with kept.start().hold(webapp.lease()) as held:
        assert interrupted(held) == LOST


def test_a_lease_lost_after_its_job_does_not_touch_the_next(
    webapp: BackendStandIn, kept: Kept
) -> None:
    keeper, answer = kept.start(), threading.Event()
    webapp.script("heartbeat", when(answer, problem(409, "lease_lost")))
    with keeper.hold(webapp.lease()) as first:
        wait_for_beats(webapp, 1)
    with keeper.hold(webapp.lease(dispatch_id="dispatch-2")) as second:
        answer.set()
        assert interrupted(first) == LOST
        assert wait_for_beats(webapp, 2)[-1]["dispatch_id"] == "dispatch-2"
        assert not second.stop.is_set()


def test_a_lease_lost_while_idle_is_nothing(webapp: BackendStandIn, kept: Kept) -> None:
    webapp.script("heartbeat", problem(409, "lease_lost"))
    kept.start(idle=SOON)
    wait_for_beats(webapp, 2)


def test_a_stop_interrupts_the_job_and_any_after_it(webapp: BackendStandIn, kept: Kept) -> None:
    keeper = kept.start()
    with keeper.hold(webapp.lease()) as held:
        keeper.stop_work()
        assert interrupted(held) == STOPPING
    with keeper.hold(webapp.lease()) as late:
        assert interrupted(late) == STOPPING


def test_a_stop_while_idle_interrupts_the_job_that_comes(
    webapp: BackendStandIn, kept: Kept
) -> None:
    keeper = kept.start()
    keeper.stop_work()
    with keeper.hold(webapp.lease()) as held:
        assert interrupted(held) == STOPPING


def test_the_first_reason_counts(webapp: BackendStandIn) -> None:
    held = Held(webapp.lease())
    held.interrupt(CANCELLED)
    held.interrupt(STOPPING)
    assert interrupted(held) == CANCELLED


def test_draining_is_passed_on_and_taken_back(webapp: BackendStandIn, kept: Kept) -> None:
    webapp.heartbeat["draining"] = True
    keeper = kept.start()
    keeper.nudge()
    wait_for(lambda: kept.draining == [True])
    webapp.heartbeat["draining"] = False
    keeper.nudge()
    wait_for(lambda: kept.draining == [True, False])


def test_a_fresh_address_replaces_the_old(webapp: BackendStandIn, kept: Kept) -> None:
    webapp.heartbeat |= {"output_url": "http://fresh", "output_headers": {"X-Fresh": "1"}}
    with kept.start().hold(webapp.lease()) as held:
        assert held.output_url == f"{webapp.url}/storage/result"
        wait_for(lambda: held.output_headers == {"X-Fresh": "1"})
        assert held.output_url == "http://fresh"
