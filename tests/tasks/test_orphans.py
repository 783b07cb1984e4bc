"""What does not fit together any more, after a crash or a backup of one database, is mended."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from models import fleets, jobs, ledger, ledger_audit, walks
from models.audit import AuditLog
from models.dispatches import Dispatch
from models.jobs import Job
from models.session import make_engine
from models.walks import OpenJob, WaitingDispatch
from tasks import catalog, orphans, outcomes, steps, sweepers
from tasks.backend import Backend
from tests.fixtures import Person, make_person
from tests.tasks import away, gpu, orders

MENDED = sweepers.Swept(jobs_mended=1)
FOLLOWED = sweepers.Swept(dispatches_mended=1)
NOTHING = sweepers.Swept()


@pytest.fixture
def ada(demo: Backend) -> Person:
    return make_person(demo, tokens=100)


@pytest.fixture
def job(demo: Backend, ada: Person) -> Job:
    made = orders.order(demo, ada)
    demo.later.close()
    return made


def lose_dispatches(backend: Backend) -> None:
    """Central was restored from a backup that does not know them."""
    owner = make_engine(backend.settings.central_url, as_owner=True)
    with owner.begin() as connection:
        connection.execute(text("DELETE FROM ai_job_dispatches"))
    owner.dispose()


def stored(backend: Backend, job: Job) -> Job:
    with backend.databases.tenant(job.tenant_id) as session:
        return jobs.get(session, job.id)


def the_dispatch(backend: Backend, job: Job) -> Dispatch:
    dispatch = orders.dispatch_of(backend, job)
    assert dispatch is not None
    return dispatch


def balance(backend: Backend, person: Person) -> int:
    with backend.databases.tenant(person.tenant_id) as session:
        assert list(ledger_audit.disagreements(session)) == []
        return ledger.balance(session, user_id=person.user_id)


def test_what_fits_together_is_left_alone(demo: Backend, ada: Person) -> None:
    waiting, held = orders.order(demo, ada), orders.order(demo, ada)
    cancelled = orders.order(demo, ada)
    demo.later.close()
    outcomes.cancel(demo, ada.tenant_id, cancelled.id)
    gpu.take(demo, gpu.join(demo))
    assert sweepers.run_once(demo) == NOTHING
    states = sorted(stored(demo, job).status for job in (waiting, held, cancelled))
    assert states == ["cancelled", "processing", "queued"]


@pytest.mark.parametrize("was", ["queued", "processing"])
def test_a_job_without_a_dispatch_gets_one_again(
    demo: Backend, ada: Person, job: Job, was: str
) -> None:
    if was == "processing":
        gpu.take(demo, gpu.join(demo))
    assert stored(demo, job).status == was
    lose_dispatches(demo)
    assert [sweepers.run_once(demo) for _ in range(2)] == [MENDED, NOTHING]
    assert stored(demo, job).status == "queued"
    outcomes.complete(demo, gpu.take(demo, gpu.join(demo)), outputs=[])
    assert stored(demo, job).status == "completed"
    assert balance(demo, ada) == 100 - job.price_tokens


def test_a_job_that_nobody_serves_any_more_is_refunded(
    demo: Backend, ada: Person, job: Job
) -> None:
    lose_dispatches(demo)
    with demo.databases.central() as session:
        session.query(fleets.WorkflowFleet).delete()
    assert [sweepers.run_once(demo) for _ in range(2)] == [MENDED, NOTHING]
    assert (stored(demo, job).status, stored(demo, job).error_code) == (
        "failed",
        "submission_timeout",
    )
    assert balance(demo, ada) == 100


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_a_job_that_forgot_its_end_is_refunded(
    demo: Backend, ada: Person, job: Job, end: str
) -> None:
    """Its pool was restored from a backup in which it still ran."""
    with demo.databases.central() as session:
        dispatch = session.get_one(Dispatch, the_dispatch(demo, job).id)
        dispatch.status = {"complete": "completed", "fail": "failed", "cancel": "cancelled"}[end]
    assert [sweepers.run_once(demo) for _ in range(2)] == [MENDED, NOTHING]
    assert (stored(demo, job).status, stored(demo, job).error_code) == ("failed", "job_lost")
    assert balance(demo, ada) == 100
    with demo.databases.central(read_only=True) as session:
        [row] = session.query(AuditLog).filter_by(event="job.fail")
    assert (row.details["code"], row.details["job_id"]) == ("job_lost", str(job.id))


def test_a_dispatch_follows_a_job_whose_cancel_stopped_half_way(
    demo: Backend, ada: Person, job: Job
) -> None:
    with demo.databases.tenant(ada.tenant_id) as session:
        jobs.cancel(session, job.id)
    assert [sweepers.run_once(demo) for _ in range(2)] == [FOLLOWED, NOTHING]
    assert the_dispatch(demo, job).status == "cancelled"
    assert balance(demo, ada) == 100


def test_a_dispatch_without_a_job_ends(demo: Backend, job: Job) -> None:
    dispatch_id = the_dispatch(demo, job).id
    with demo.databases.central() as session:
        session.get_one(Dispatch, dispatch_id).tenant_job_id = uuid4()
    assert sweepers.run_once(demo) == replace(FOLLOWED, jobs_mended=1)
    assert sweepers.run_once(demo) == NOTHING
    with demo.databases.central(read_only=True) as session:
        assert session.get_one(Dispatch, dispatch_id).status == "failed"


def test_a_pool_that_is_away_is_not_taken_for_one_that_knows_nothing(demo: Backend) -> None:
    ada, bob = make_person(demo, tokens=100), make_person(demo, tokens=100, pool="second")
    hers, his = orders.order(demo, ada), orders.order(demo, bob)
    demo.later.close()
    for person, made in ((ada, hers), (bob, his)):
        with demo.databases.tenant(person.tenant_id) as session:
            jobs.cancel(session, made.id)
    other = Backend.open(replace(demo.settings, **away.pools(demo, "main")))
    assert sweepers.run_once(other) == FOLLOWED
    other.close()
    assert (the_dispatch(demo, hers).status, the_dispatch(demo, his).status) == (
        "queued",
        "cancelled",
    )


def test_a_walk_goes_on_where_the_last_one_ended(
    demo: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MOST_WALKED", 1)
    people = [make_person(demo, tokens=100) for _ in range(3)]
    for person in people:
        orders.order(demo, person)
        orders.order(demo, person)
    demo.later.close()

    def jobs_after(user_id: UUID | None) -> list[OpenJob]:
        with demo.databases.pool("main") as session:
            return walks.open_jobs(session, after=user_id, size=3)

    def dispatches_after(user_id: UUID | None) -> list[WaitingDispatch]:
        with demo.databases.central(read_only=True) as session:
            lanes = walks.lanes(session, stage="dev")
            lane = next(lane for lane in lanes if lane.provider == "self_hosted")
            return walks.waiting(session, lane, after=user_id, size=3)

    seen: list[UUID] = []

    def look(page: Sequence[OpenJob | WaitingDispatch]) -> int:
        seen.extend(row.user_id for row in page)
        return len(page)

    one_by_one = [user_id for user_id in sorted(one.user_id for one in people) for _ in range(2)]
    for _ in range(4):
        assert steps.walk(demo, "jobs", jobs_after, look) == 2
    assert seen == [*one_by_one, *one_by_one[:2]]
    seen.clear()
    for _ in range(4):
        assert steps.walk(demo, "dispatches", dispatches_after, look) == 2
    assert seen == [*one_by_one, *one_by_one[:2]]


def test_a_user_with_more_than_a_page_does_not_stop_a_walk(demo: Backend, ada: Person) -> None:
    bob = make_person(demo, tokens=100)
    for person in (ada, bob):
        for _ in range(4):
            orders.order(demo, person)
    demo.later.close()
    with demo.databases.pool("main") as session:
        first = walks.open_jobs(session, after=None, size=2)
        second = walks.open_jobs(session, after=first[-1].user_id, size=2)
        assert [len(first), len(second)] == [2, 2]
        assert first[0].user_id != second[0].user_id
        assert walks.open_jobs(session, after=second[-1].user_id, size=2) == []


def test_what_is_mended_is_mended_once_though_many_try(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=1000)
    lost, forgotten = orders.order(postgres, ada), orders.order(postgres, ada)
    postgres.later.close()
    with postgres.databases.central() as session:
        session.get_one(Dispatch, the_dispatch(postgres, forgotten).id).status = "completed"
    owner = make_engine(postgres.settings.central_url, as_owner=True)
    with owner.begin() as connection:
        gone = {"job": lost.id}
        connection.execute(text("DELETE FROM ai_job_dispatches WHERE tenant_job_id = :job"), gone)
    owner.dispose()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: orphans.mend_jobs(postgres), range(4)))
    assert stored(postgres, forgotten).status == "failed"
    assert the_dispatch(postgres, lost).status == "queued"
    assert balance(postgres, ada) == 1000 - lost.price_tokens
    with postgres.databases.central(read_only=True) as session:
        assert session.query(AuditLog).filter_by(event="job.fail").count() == 1
