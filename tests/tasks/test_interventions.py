"""What a person changes about jobs: it counts at once, is audited, rung for and told."""

import threading
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from redis import Redis

from models import dispatches, jobs
from models.audit import AuditLog
from models.dead_letters import DeadLetterStatus
from models.dispatches import Dispatch
from models.errors import NotFound, NotPossibleNow
from models.jobs import Job, JobStatus
from tasks import catalog, interventions, news, outcomes, redrive, reports
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person, make_person
from tests.tasks import gpu, letters, orders

BOSS = "user:boss"


@pytest.fixture
def ada(demo: Backend, person: MakePerson) -> Person:
    return person(tokens=100)


def waiting(backend: Backend, person: Person) -> Dispatch:
    return letters.dispatch_of(backend, orders.order(backend, person))


def backing_off(backend: Backend, person: Person) -> Dispatch:
    """Gave back twice: it waits for ten seconds now."""
    dispatch = waiting(backend, person)
    for _ in range(2):
        worker = gpu.join(backend)
        reports.fail(backend, worker, gpu.take(backend, worker), error="x", retryable=True)
    return now(backend, dispatch)


def now(backend: Backend, dispatch: Dispatch) -> Dispatch:
    with backend.databases.central(read_only=True) as session:
        return dispatches.get(session, dispatch.id)


def audited(backend: Backend, event: str) -> list[AuditLog]:
    return letters.audited(backend, event)


def test_to_the_front_is_ahead_of_everybody(demo: Backend, ada: Person, person: MakePerson) -> None:
    others = [waiting(demo, person(tokens=9)) for _ in range(3)]
    last = waiting(demo, ada)
    assert interventions.front(demo, last.id, actor=BOSS).priority == 1
    first = orders.lease_next(demo)
    assert first is not None
    assert first.id == last.id
    [row] = audited(demo, "dispatch.front")
    assert (row.actor, row.tenant_id, row.dispatch_id) == (BOSS, ada.tenant_id, last.id)
    assert (row.details["before"], row.details["priority"]) == (0, 1)
    assert all(now(demo, one).priority == 0 for one in others)


def test_what_is_ahead_already_stays_and_is_not_audited(demo: Backend, ada: Person) -> None:
    only = waiting(demo, ada)
    for _ in range(2):
        interventions.front(demo, only.id, actor=BOSS)
        interventions.set_priority(demo, only.id, priority=0, actor=BOSS)
    assert audited(demo, "dispatch.front") == []
    assert audited(demo, "dispatch.priority") == []


def test_a_priority_counts_at_once(demo: Backend, ada: Person, person: MakePerson) -> None:
    first, second = waiting(demo, person(tokens=9)), waiting(demo, ada)
    interventions.set_priority(demo, first.id, priority=-5, actor="cli")
    leased = orders.lease_next(demo)
    assert leased is not None
    assert leased.id == second.id
    [row] = audited(demo, "dispatch.priority")
    assert (row.actor, row.details["before"], row.details["priority"]) == ("cli", 0, -5)


STEPS = {
    "front": interventions.front,
    "priority": partial(interventions.set_priority, priority=3),
    "retry": interventions.retry,
    "cancel": interventions.cancel,
}


@pytest.mark.parametrize("step", ["front", "priority", "retry"])
def test_what_runs_is_not_disturbed(demo: Backend, ada: Person, step: str) -> None:
    dispatch = waiting(demo, ada)
    orders.lease_next(demo)
    with pytest.raises(NotPossibleNow):
        STEPS[step](demo, dispatch.id, actor=BOSS)
    assert now(demo, dispatch).status == "leased"
    assert letters.audited(demo, f"dispatch.{step}") == []


@pytest.mark.parametrize("step", ["front", "priority", "retry"])
@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_what_has_ended_well_or_was_cancelled_stays_so(
    demo: Backend, ada: Person, step: str, end: str
) -> None:
    dispatch = waiting(demo, ada)
    if end == "completed":
        worker = gpu.join(demo)
        reports.complete(demo, worker, gpu.take(demo, worker), outputs=[gpu.IMAGE])
    else:
        outcomes.cancel(demo, ada.tenant_id, dispatch.tenant_job_id)
    with pytest.raises(NotPossibleNow):
        STEPS[step](demo, dispatch.id, actor=BOSS)


@pytest.mark.parametrize("step", sorted(STEPS))
def test_what_is_not_there_is_not_found(demo: Backend, step: str) -> None:
    with pytest.raises(NotFound):
        STEPS[step](demo, uuid4(), actor=BOSS)


def test_a_job_that_backs_off_is_tried_now(demo: Backend, ada: Person) -> None:
    dispatch = backing_off(demo, ada)
    assert dispatch.available_at is not None
    assert orders.lease_next(demo) is None
    assert interventions.retry(demo, dispatch.id, actor=BOSS).available_at is None
    leased = orders.lease_next(demo)
    assert leased is not None
    assert (leased.id, leased.attempts) == (dispatch.id, 3)
    [row] = audited(demo, "dispatch.retry")
    assert row.actor == BOSS


def test_retrying_what_waits_for_its_turn_only_changes_nothing(demo: Backend, ada: Person) -> None:
    dispatch = waiting(demo, ada)
    assert interventions.retry(demo, dispatch.id, actor=BOSS).updated_at == dispatch.updated_at
    assert audited(demo, "dispatch.retry") == []


def test_retrying_a_dead_letter_redrives_it(demo: Backend, ada: Person) -> None:
    failed = letters.dispatch_of(demo, letters.given_up(demo, ada))
    made = [interventions.retry(demo, failed.id, actor=BOSS) for _ in range(2)]
    assert (made[0].id, made[0].status) == (made[1].id, "queued")
    assert made[0].id != failed.id
    letter = letters.kept(demo, letters.every_job(demo, ada)[0])
    assert (letter.status, letter.redriven_job_id) == (
        DeadLetterStatus.REDRIVEN,
        made[0].tenant_job_id,
    )


def test_retrying_a_job_that_failed_by_its_own_fault_orders_it_again(
    demo: Backend, ada: Person
) -> None:
    job = orders.order(demo, ada)
    worker = gpu.join(demo)
    reports.fail(demo, worker, gpu.take(demo, worker), error="Too dark.")
    made = interventions.retry(demo, letters.dispatch_of(demo, job).id, actor=BOSS)
    assert made.status == "queued"
    assert letters.balance(demo, ada) == 100 - job.price_tokens
    assert letters.kept(demo, job).reason == "by_hand"


def test_retrying_what_was_discarded_is_refused(demo: Backend, ada: Person) -> None:
    job = letters.given_up(demo, ada)
    redrive.discard(demo, letters.kept(demo, job).id, actor=BOSS)
    with pytest.raises(NotPossibleNow):
        interventions.retry(demo, letters.dispatch_of(demo, job).id, actor=BOSS)


def test_retrying_what_was_ordered_again_and_cancelled_before_it_began_is_refused(
    demo: Backend, ada: Person
) -> None:
    job = letters.given_up(demo, ada)
    with letters.dying_in_central(demo):
        redrive.redrive(demo, letters.kept(demo, job).id, actor=BOSS)
    new = letters.every_job(demo, ada)[-1]
    outcomes.cancel(demo, ada.tenant_id, new.id)
    with pytest.raises(NotPossibleNow, match="ended before it began"):
        interventions.retry(demo, letters.dispatch_of(demo, job).id, actor=BOSS)


def test_cancelling_refunds_and_is_audited_with_who(demo: Backend, ada: Person) -> None:
    dispatch = waiting(demo, ada)
    for _ in range(2):
        assert interventions.cancel(demo, dispatch.id, actor=BOSS).status == "cancelled"
    assert letters.balance(demo, ada) == 100
    [row] = audited(demo, "job.cancel")
    assert (row.actor, row.dispatch_id) == (BOSS, dispatch.id)


def test_a_dispatch_whose_job_is_gone_can_be_cancelled(demo: Backend, ada: Person) -> None:
    dispatch = waiting(demo, ada)
    with demo.databases.central() as session:
        session.get_one(Dispatch, dispatch.id).tenant_job_id = uuid4()
    for _ in range(2):
        assert interventions.cancel(demo, dispatch.id, actor=BOSS).status == "cancelled"
    assert [row.actor for row in audited(demo, "job.cancel")] == [BOSS]


@pytest.mark.parametrize("step", ["front", "priority", "retry"])
def test_a_change_rings(demo: Backend, ada: Person, step: str) -> None:
    dispatch = backing_off(demo, ada) if step == "retry" else waiting(demo, ada)
    demo.later.close()
    with Redis.from_url(demo.settings.redis_url) as redis:
        redis.flushdb()
        STEPS[step](demo, dispatch.id, actor=BOSS)
        demo.later.close()
        assert redis.llen("gpu-default") == 1


def test_what_still_backs_off_is_not_rung_for(demo: Backend, ada: Person) -> None:
    dispatch = backing_off(demo, ada)
    demo.later.close()
    with Redis.from_url(demo.settings.redis_url) as redis:
        redis.flushdb()
        interventions.set_priority(demo, dispatch.id, priority=4, actor=BOSS)
        demo.later.close()
        assert redis.llen("gpu-default") == 0


@pytest.mark.parametrize("step", sorted(STEPS))
def test_whoever_watches_is_told(demo: Backend, ada: Person, step: str) -> None:
    dispatch = waiting(demo, ada)
    heard = Ear(demo.settings.redis_url)
    STEPS[step](demo, dispatch.id, actor=BOSS)
    heard.until(str(dispatch.tenant_job_id))


def test_whoever_watches_dead_letters_is_told(demo: Backend, ada: Person) -> None:
    redriven, discarded = (letters.kept(demo, letters.given_up(demo, ada)) for _ in range(2))
    heard = Ear(demo.settings.redis_url)
    new = redrive.redrive(demo, redriven.id, actor=BOSS).redriven_job_id
    heard.until(str(new), news.ANYTHING)
    heard = Ear(demo.settings.redis_url)
    redrive.discard(demo, discarded.id, actor=BOSS)
    heard.until(news.ANYTHING)


class Ear:
    """Hears the news from when it is made."""

    def __init__(self, redis_url: str) -> None:
        self._told = news.listen(redis_url, gather=0)
        assert next(self._told) is None

    def until(self, *wanted: str) -> None:
        missing = set(wanted)
        for _ in range(20):
            missing -= next(self._told) or set()
            if not missing:
                return
        raise AssertionError(f"Nobody told {missing}.")


def test_a_lease_and_a_change_at_once_do_not_both_have_it(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    for _ in range(8):
        dispatch = waiting(postgres, ada)
        start = threading.Barrier(2)
        found: dict[str, Any] = {}

        def take(start: threading.Barrier = start, found: dict[str, Any] = found) -> None:
            start.wait(timeout=30)
            found["lease"] = orders.lease_next(postgres)

        taking = threading.Thread(target=take)
        taking.start()
        start.wait(timeout=30)
        try:
            moved = interventions.set_priority(postgres, dispatch.id, priority=9, actor=BOSS)
        except NotPossibleNow:
            moved = None
        taking.join()
        assert moved is not None or found["lease"] is not None
        assert now(postgres, dispatch).priority == (9 if moved else 0)
        outcomes.cancel(postgres, ada.tenant_id, dispatch.tenant_job_id)


def test_a_cancel_and_a_front_at_once_leave_a_cancelled_job(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    for _ in range(6):
        dispatch = waiting(postgres, ada)
        waiting(postgres, ada)
        turns = iter([interventions.cancel, interventions.front])
        choosing = threading.Lock()

        def step(turns: Any = turns, lock: Any = choosing, one: UUID = dispatch.id) -> Dispatch:
            with lock:
                chosen = next(turns)
            return chosen(postgres, one, actor=BOSS)

        letters.at_once(2, step)
        assert now(postgres, dispatch).status == "cancelled"
        assert stored(postgres, ada, dispatch).status == JobStatus.CANCELLED
        for job in letters.every_job(postgres, ada):
            outcomes.cancel(postgres, ada.tenant_id, job.id)
    assert letters.balance(postgres, ada) == 100


def stored(backend: Backend, person: Person, dispatch: Dispatch) -> Job:
    with backend.databases.tenant(person.tenant_id) as session:
        return jobs.get(session, dispatch.tenant_job_id)
