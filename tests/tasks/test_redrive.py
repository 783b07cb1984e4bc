"""Ordering the work of a dead letter again: one new job, paid once, whatever comes in between."""

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from uuid import UUID, uuid4

import pytest
from redis import Redis

from models import dead_letters, effects, jobs, lanes, ledger_audit, videos
from models.base import utcnow
from models.dead_letters import DeadLetter, DeadLetterStatus
from models.dispatches import Dispatch
from models.effects import Effect
from models.errors import (
    DATABASE_AWAY,
    EffectUnavailable,
    InsufficientTokens,
    NotFound,
    NotPossibleNow,
)
from models.fleets import Fleet
from models.jobs import Job, JobStatus
from models.workflows import Workflow
from tasks import catalog, outcomes, reconcile, redrive, submission
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person, make_person
from tests.tasks import away, gpu, letters, orders
from tests.tasks.letters import balance, every_job, given_up, kept

BOSS = "user:boss"


@pytest.fixture
def ada(demo: Backend, person: MakePerson) -> Person:
    return person(tokens=100)


def adds_up(backend: Backend) -> bool:
    with backend.databases.pool("main") as session:
        return not list(ledger_audit.disagreements(session))


def letter_now(backend: Backend, letter: DeadLetter) -> DeadLetter:
    with backend.databases.central(read_only=True) as session:
        return dead_letters.get(session, letter.id)


def test_a_redrive_is_a_new_job_with_the_same_inputs(demo: Backend, ada: Person) -> None:
    old = given_up(demo, ada, width=64)
    assert balance(demo, ada) == 100
    letter = redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
    assert (letter.status, letter.resolved_by) == (DeadLetterStatus.REDRIVEN, BOSS)
    new = letters.stored(demo, ada, letter.redriven_job_id)
    assert new.id != old.id
    assert new.status == JobStatus.QUEUED
    assert new.input_payload.pop("origin")["actor"] == BOSS
    for same in ("user_id", "effect_id", "workflow_id", "provider", "price_tokens"):
        assert getattr(new, same) == getattr(old, same)
    assert new.input_payload == letters.stored(demo, ada, old.id).input_payload
    assert new.input_payload["values"]["width"] == 64
    assert balance(demo, ada) == 100 - old.price_tokens
    dispatch = letters.dispatch_of(demo, new)
    assert (dispatch.status, dispatch.attempts, dispatch.max_attempts) == ("queued", 0, 3)
    worker = gpu.join(demo)
    outcomes.complete(demo, gpu.take(demo, worker), outputs=[])
    assert letters.stored(demo, ada, new.id).status == JobStatus.COMPLETED
    assert letters.stored(demo, ada, old.id).status == JobStatus.FAILED
    assert adds_up(demo)


def test_a_redrive_is_audited_with_who_and_as_what(demo: Backend, ada: Person) -> None:
    old = given_up(demo, ada)
    letter = redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
    redrive.redrive(demo, letter.id, actor="cli")
    [row] = letters.audited(demo, "dead_letter.redrive")
    assert (row.actor, row.tenant_id, row.dispatch_id) == (BOSS, ada.tenant_id, letter.dispatch_id)
    assert row.details["redriven_job_id"] == str(letter.redriven_job_id)
    assert row.details["job_id"] == str(old.id)
    assert row.details["before"] == "open"


def test_a_redrive_rings(demo: Backend, ada: Person) -> None:
    old = given_up(demo, ada)
    demo.later.close()
    with Redis.from_url(demo.settings.redis_url) as redis:
        redis.flushdb()
        redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
        demo.later.close()
        assert redis.llen("gpu-default") == 1


def test_a_redrive_again_is_the_same_job(demo: Backend, ada: Person) -> None:
    old = given_up(demo, ada)
    made = {redrive.redrive(demo, kept(demo, old).id, actor=BOSS).redriven_job_id for _ in "abc"}
    assert len(made) == 1
    assert len(every_job(demo, ada)) == 2
    assert balance(demo, ada) == 100 - old.price_tokens


def test_the_price_is_that_of_the_old_job(demo: Backend, ada: Person) -> None:
    old = given_up(demo, ada)
    with demo.databases.central() as session:
        session.get_one(Effect, old.effect_id).credits_cost = 77
    redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
    assert balance(demo, ada) == 100 - old.price_tokens


def test_a_redrive_keeps_the_priority_of_its_job(demo: Backend, ada: Person) -> None:
    old = orders.order(demo, ada)
    with demo.databases.central() as session:
        lanes.set_priority(session, letters.dispatch_of(demo, old).id, priority=-40)
    letters.lose(demo)
    letter = redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
    new = letters.stored(demo, ada, letter.redriven_job_id)
    assert letters.dispatch_of(demo, new).priority == -40


def test_a_redriven_job_that_dies_as_well_is_a_letter_of_its_own(
    demo: Backend, ada: Person
) -> None:
    job = given_up(demo, ada)
    for expected in range(2, 5):
        letter = redrive.redrive(demo, kept(demo, job).id, actor=BOSS)
        letters.lose(demo)
        job = letters.stored(demo, ada, letter.redriven_job_id)
        assert job.status == JobStatus.FAILED
        assert len(every_job(demo, ada)) == expected
    assert balance(demo, ada) == 100
    assert adds_up(demo)


def test_the_limit_of_active_jobs_does_not_stop_an_operator(demo: Backend, ada: Person) -> None:
    old = given_up(demo, ada)
    for _ in range(demo.settings.max_active_jobs):
        orders.order(demo, ada)
    assert redrive.redrive(demo, kept(demo, old).id, actor=BOSS).redriven_job_id


def test_too_few_tokens_leave_the_letter_open(demo: Backend, person: MakePerson) -> None:
    poor = person(tokens=1)
    old = given_up(demo, poor)
    orders.order(demo, poor)
    with pytest.raises(InsufficientTokens) as refused:
        redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
    assert refused.value.extra == {"required_tokens": old.price_tokens, "balance": 0}
    assert kept(demo, old).status == DeadLetterStatus.OPEN
    assert len(every_job(demo, poor)) == 2
    assert letters.audited(demo, "dead_letter.redrive") == []


def switch_off_effect(backend: Backend, job: Job) -> None:
    with backend.databases.central() as session:
        session.get_one(Effect, job.effect_id).is_active = False


def switch_off_workflow(backend: Backend, job: Job) -> None:
    with backend.databases.central() as session:
        session.get_one(Workflow, job.workflow_id).is_active = False


def switch_off_fleet(backend: Backend, job: Job) -> None:
    with backend.databases.central() as session:
        for fleet in session.query(Fleet):
            fleet.is_active = False


@pytest.mark.parametrize("switch_off", [switch_off_effect, switch_off_workflow, switch_off_fleet])
def test_what_is_switched_off_is_not_ordered_again(
    demo: Backend, ada: Person, switch_off: Callable[[Backend, Job], None]
) -> None:
    old = given_up(demo, ada)
    switch_off(demo, old)
    with pytest.raises(EffectUnavailable):
        redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
    assert kept(demo, old).status == DeadLetterStatus.OPEN
    assert balance(demo, ada) == 100


def test_a_redrive_uses_the_workflow_of_the_order(demo: Backend, ada: Person) -> None:
    """The effect may run another one by now, with other properties."""
    old = given_up(demo, ada)
    with demo.databases.central() as session:
        other = effects.get(session, "image-blur").workflow
        session.get_one(Effect, old.effect_id).workflow = other
    letter = redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
    assert letters.stored(demo, ada, letter.redriven_job_id).workflow_id == old.workflow_id


def ordered_for_a_video(backend: Backend, person: Person) -> tuple[Job, UUID]:
    video_id = orders.add_video(backend, person)
    request = replace(orders.request(person, effect="image-invert"), video_id=video_id)
    job = submission.submit(backend, request).job
    letters.lose(backend)
    return job, video_id


def test_the_video_is_worked_on_again(demo: Backend, ada: Person) -> None:
    old, video_id = ordered_for_a_video(demo, ada)
    redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
    with demo.databases.tenant(ada.tenant_id) as session:
        assert videos.get(session, video_id, user_id=ada.user_id).status == "processing"


def test_a_video_that_was_deleted_can_not_be_worked_on(demo: Backend, ada: Person) -> None:
    old, video_id = ordered_for_a_video(demo, ada)
    with demo.databases.tenant(ada.tenant_id) as session:
        jobs.remove_video(session, video_id, user_id=ada.user_id)
    with pytest.raises(NotPossibleNow, match="was deleted"):
        redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
    assert kept(demo, old).status == DeadLetterStatus.OPEN
    assert balance(demo, ada) == 100


def test_a_video_that_expired_can_not_be_worked_on(demo: Backend, ada: Person) -> None:
    old, video_id = ordered_for_a_video(demo, ada)
    with demo.databases.tenant(ada.tenant_id) as session:
        videos.get(session, video_id, user_id=ada.user_id).status = "expired"
    with pytest.raises(NotPossibleNow, match="expired"):
        redrive.redrive(demo, kept(demo, old).id, actor=BOSS)
    assert kept(demo, old).status == DeadLetterStatus.OPEN


def test_a_file_that_was_deleted_can_not_be_an_input(demo: Backend, ada: Person) -> None:
    video_id = orders.add_video(demo, ada)
    with demo.databases.tenant(ada.tenant_id) as session:
        file_id = videos.get(session, video_id, user_id=ada.user_id).original_file_id
    old = given_up(demo, ada, effect="image-invert", image=str(file_id))
    with demo.databases.tenant(ada.tenant_id) as session:
        jobs.remove_video(session, video_id, user_id=ada.user_id)
    with pytest.raises(NotPossibleNow, match="was deleted"):
        redrive.redrive(demo, kept(demo, old).id, actor=BOSS)


def test_while_the_pool_is_away_the_letter_stays_open(demo: Backend, ada: Person) -> None:
    old = given_up(demo, ada)
    lame = Backend.open(replace(demo.settings, **away.pools(demo, "main")))
    with pytest.raises((*DATABASE_AWAY, OSError)):
        redrive.redrive(lame, kept(demo, old).id, actor=BOSS)
    lame.close()
    assert kept(demo, old).status == DeadLetterStatus.OPEN
    assert redrive.redrive(demo, kept(demo, old).id, actor=BOSS).redriven_job_id


def test_a_letter_whose_job_is_gone_can_only_be_discarded(demo: Backend, ada: Person) -> None:
    old = given_up(demo, ada)
    letter = kept(demo, old)
    with demo.databases.central() as session:
        session.get_one(dead_letters.Dispatch, letter.dispatch_id).tenant_job_id = uuid4()
    with pytest.raises(NotPossibleNow, match="is gone"):
        redrive.redrive(demo, letter.id, actor=BOSS)
    assert redrive.discard(demo, letter.id, actor=BOSS).status == DeadLetterStatus.DISCARDED


def test_another_stage_orders_its_own_work_only(demo: Backend, ada: Person) -> None:
    letter = kept(demo, given_up(demo, ada))
    elsewhere = Backend.open(replace(demo.settings, stage="production"))
    with pytest.raises(NotPossibleNow, match="stage 'dev'"):
        redrive.redrive(elsewhere, letter.id, actor=BOSS)
    elsewhere.close()
    assert len(every_job(demo, ada)) == 1


def forget_in_central(backend: Backend, letter: DeadLetter) -> None:
    """Central was restored from a backup that knows nothing of what failed."""
    with backend.databases.central() as session:
        for table, key in ((DeadLetter, letter.id), (Dispatch, letter.dispatch_id)):
            session.delete(session.get_one(table, key))
            session.flush()


def test_a_redrive_whose_letter_is_gone_is_served_all_the_same(demo: Backend, ada: Person) -> None:
    """It is paid for; only that it was a redrive is forgotten."""
    letter = kept(demo, given_up(demo, ada))
    with letters.dying_in_central(demo):
        redrive.redrive(demo, letter.id, actor=BOSS)
    forget_in_central(demo, letter)
    assert reconcile.run_once(demo, now=utcnow() + timedelta(seconds=11)).healed == 1
    assert letters.dispatch_of(demo, every_job(demo, ada)[-1]).status == "queued"


def test_a_dispatch_that_a_backup_brought_back_ends_after_its_work_was_ordered_again(
    demo: Backend, ada: Person
) -> None:
    old = given_up(demo, ada)
    letter = kept(demo, old)
    with letters.dying_in_central(demo):
        redrive.redrive(demo, letter.id, actor=BOSS)
    with demo.databases.central() as session:  # as it was before it failed
        session.delete(session.get_one(DeadLetter, letter.id))
        session.flush()
        session.get_one(Dispatch, letter.dispatch_id).status = "queued"
    reconcile.run_once(demo, now=utcnow() + timedelta(seconds=11))
    new = every_job(demo, ada)[-1]
    assert kept(demo, old).redriven_job_id == new.id
    outcomes.settle(demo, letters.stored(demo, ada, old.id))
    assert letters.dispatch_of(demo, old).status == "failed"
    assert kept(demo, old).status == DeadLetterStatus.REDRIVEN


def test_a_letter_that_is_none_is_not_found(demo: Backend) -> None:
    for step in (redrive.redrive, redrive.discard):
        with pytest.raises(NotFound):
            step(demo, uuid4(), actor=BOSS)


def test_a_discard_is_audited_once_with_its_reason(demo: Backend, ada: Person) -> None:
    letter = kept(demo, given_up(demo, ada))
    for _ in range(2):
        done = redrive.discard(demo, letter.id, actor=BOSS, note="A known outage.")
        assert (done.status, done.resolved_by) == (DeadLetterStatus.DISCARDED, BOSS)
    [row] = letters.audited(demo, "dead_letter.discard")
    assert (row.actor, row.details["note"]) == (BOSS, "A known outage.")


def test_what_was_decided_stays_decided(demo: Backend, ada: Person) -> None:
    discarded = kept(demo, given_up(demo, ada))
    redrive.discard(demo, discarded.id, actor=BOSS)
    with pytest.raises(NotPossibleNow):
        redrive.redrive(demo, discarded.id, actor=BOSS)
    redriven = kept(demo, given_up(demo, ada))
    redrive.redrive(demo, redriven.id, actor=BOSS)
    with pytest.raises(NotPossibleNow):
        redrive.discard(demo, redriven.id, actor=BOSS)
    assert len(every_job(demo, ada)) == 3


@pytest.mark.parametrize("threads", [2, 8])
def test_redriving_at_once_is_one_job(postgres: Backend, threads: int) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    for expected in range(1, 4):
        old = given_up(postgres, ada)
        letter = kept(postgres, old)
        step = partial(redrive.redrive, postgres, letter.id, actor=BOSS)
        done = letters.at_once(threads, step)
        assert len({one.redriven_job_id for one in done}) == 1
        assert len(letters.audited(postgres, "dead_letter.redrive")) == expected
        assert balance(postgres, ada) == 100 - old.price_tokens  # the one before died as well
    assert adds_up(postgres)


def test_redriving_at_once_is_one_job_on_sqlite(sqlite: Backend) -> None:
    catalog.seed_demo(sqlite)
    ada = make_person(sqlite, tokens=100)
    letter = kept(sqlite, given_up(sqlite, ada))
    done = letters.at_once(3, lambda: redrive.redrive(sqlite, letter.id, actor=BOSS))
    assert len({one.redriven_job_id for one in done}) == 1
    assert len(every_job(sqlite, ada)) == 2


def test_redriving_and_discarding_at_once_is_one_of_the_two(postgres: Backend) -> None:
    """Never a letter that says "nothing to do" while its work is being done."""
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    for _ in range(12):
        before = len(every_job(postgres, ada))
        letter = kept(postgres, given_up(postgres, ada))
        decide_at_once(postgres, letter)
        letter = letter_now(postgres, letter)
        made = len(every_job(postgres, ada)) - before - 1
        assert made == (1 if letter.status == DeadLetterStatus.REDRIVEN else 0)
        assert letter.status != DeadLetterStatus.OPEN
        letters.lose(postgres)  # what was redriven makes room for the next


def decide_at_once(backend: Backend, letter: DeadLetter) -> None:
    steps = queue.SimpleQueue[Callable[..., DeadLetter]]()
    for step in (redrive.redrive, redrive.discard) * 2:
        steps.put(step)
    letters.at_once(4, lambda: steps.get()(backend, letter.id, actor=BOSS))


def test_a_redrive_that_died_between_the_databases_is_finished_by_asking_again(
    demo: Backend, ada: Person
) -> None:
    old = given_up(demo, ada)
    letter = kept(demo, old)
    with letters.dying_in_central(demo):
        redrive.redrive(demo, letter.id, actor=BOSS)
    assert letter_now(demo, letter).status == DeadLetterStatus.OPEN
    assert balance(demo, ada) == 100 - old.price_tokens  # held already
    switch_off_effect(demo, old)  # too late: it is paid for
    done = redrive.redrive(demo, letter.id, actor="cli")
    assert done.status == DeadLetterStatus.REDRIVEN
    assert done.resolved_by == BOSS  # who ordered it
    assert len(every_job(demo, ada)) == 2
    assert balance(demo, ada) == 100 - old.price_tokens


def test_a_redrive_that_died_between_the_databases_is_finished_by_the_reconciler(
    demo: Backend, ada: Person
) -> None:
    letter = kept(demo, given_up(demo, ada))
    with letters.dying_in_central(demo):
        redrive.redrive(demo, letter.id, actor=BOSS)
    assert reconcile.run_once(demo, now=utcnow() + timedelta(seconds=11)).healed == 1
    done = letter_now(demo, letter)
    assert (done.status, done.resolved_by) == (DeadLetterStatus.REDRIVEN, BOSS)
    [row] = letters.audited(demo, "dead_letter.redrive")
    assert row.actor == BOSS
    assert letters.dispatch_of(demo, letters.stored(demo, ada, done.redriven_job_id))


def test_a_redrive_that_died_wins_over_a_discard_that_came_in_between(
    demo: Backend, ada: Person
) -> None:
    """It is paid for and will run; a letter must not say that nothing is done."""
    letter = kept(demo, given_up(demo, ada))
    with letters.dying_in_central(demo):
        redrive.redrive(demo, letter.id, actor=BOSS)
    redrive.discard(demo, letter.id, actor="user:other")
    reconcile.run_once(demo, now=utcnow() + timedelta(seconds=11))
    done = letter_now(demo, letter)
    assert (done.status, done.resolved_by) == (DeadLetterStatus.REDRIVEN, BOSS)
    [row] = letters.audited(demo, "dead_letter.redrive")
    assert row.details["before"] == "discarded"


def test_a_redrive_that_found_no_machines_after_all_is_refunded_and_can_be_asked_again(
    demo: Backend, ada: Person
) -> None:
    old = given_up(demo, ada)
    letter = kept(demo, old)
    with letters.dying_in_central(demo):
        redrive.redrive(demo, letter.id, actor=BOSS)
    switch_off_fleet(demo, old)
    with pytest.raises(EffectUnavailable):
        redrive.redrive(demo, letter.id, actor=BOSS)
    reconcile.run_once(demo, now=utcnow() + timedelta(minutes=6))
    assert balance(demo, ada) == 100
    assert letter_now(demo, letter).status == DeadLetterStatus.OPEN
    with demo.databases.central() as session:
        for fleet in session.query(Fleet):
            fleet.is_active = True
    done = redrive.redrive(demo, letter.id, actor=BOSS)
    assert letters.stored(demo, ada, done.redriven_job_id).status == JobStatus.QUEUED
    assert balance(demo, ada) == 100 - old.price_tokens
    assert len(every_job(demo, ada)) == 3
    assert adds_up(demo)


def test_a_user_who_cancels_the_new_job_has_the_last_word(demo: Backend, ada: Person) -> None:
    letter = kept(demo, given_up(demo, ada))
    new = redrive.redrive(demo, letter.id, actor=BOSS).redriven_job_id
    assert new is not None
    outcomes.cancel(demo, ada.tenant_id, new, actor=f"user:{ada.user_id}")
    assert redrive.redrive(demo, letter.id, actor=BOSS).redriven_job_id == new
    assert letters.stored(demo, ada, new).status == JobStatus.CANCELLED
    assert balance(demo, ada) == 100


def test_a_user_who_cancels_before_its_dispatch_is_made_has_it_too(
    demo: Backend, ada: Person
) -> None:
    letter = kept(demo, given_up(demo, ada))
    with letters.dying_in_central(demo):
        redrive.redrive(demo, letter.id, actor=BOSS)
    new = every_job(demo, ada)[-1]
    outcomes.cancel(demo, ada.tenant_id, new.id)
    done = redrive.redrive(demo, letter.id, actor=BOSS)
    assert (done.status, done.redriven_job_id) == (DeadLetterStatus.REDRIVEN, new.id)
    assert len(every_job(demo, ada)) == 2
    assert balance(demo, ada) == 100


def test_only_what_failed_is_ordered_again(demo: Backend, ada: Person) -> None:
    waiting = letters.dispatch_of(demo, orders.order(demo, ada))
    with pytest.raises(NotPossibleNow):
        redrive.again(demo, waiting, actor=BOSS)


def test_a_job_that_failed_by_its_own_fault_gets_a_letter_when_it_is_ordered_again(
    demo: Backend, ada: Person
) -> None:
    old = orders.order(demo, ada)
    outcomes.fail(
        demo, gpu.take(demo, gpu.join(demo)), code="execution_failed", message="No.", error="No."
    )
    failed = letters.dispatch_of(demo, old)
    made = letters.at_once(1, lambda: redrive.again(demo, failed, actor=BOSS))
    made += [redrive.again(demo, failed, actor=BOSS)]
    assert len({one.redriven_job_id for one in made}) == 1
    letter = kept(demo, old)
    assert (letter.status, letter.reason, letter.error) == ("redriven", "by_hand", "No.")
    assert [one["ending"] for one in letter.history] == ["fail"]


def test_redriving_many_at_once_spends_no_more_than_there_is(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=4)
    price = orders.order(postgres, ada).price_tokens
    letters.lose(postgres)
    for _ in range(4):
        given_up(postgres, ada)
    failed = [kept(postgres, job) for job in every_job(postgres, ada)]

    def step(letter: DeadLetter) -> bool:
        try:
            redrive.redrive(postgres, letter.id, actor=BOSS)
        except InsufficientTokens:
            return False
        return True

    with ThreadPoolExecutor(len(failed)) as threads:
        done = list(threads.map(step, failed))
    assert sum(done) == min(len(failed), 4 // price)
    assert balance(postgres, ada) == 4 - price * sum(done)
    assert adds_up(postgres)
