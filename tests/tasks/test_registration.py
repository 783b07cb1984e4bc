"""Workers come and go: places and names are given once, and what one held is not lost."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import select, update

from models import dispatches, enlisted, fleets, ledger, workflows
from models.audit import AuditLog
from models.base import utcnow
from models.errors import (
    EffectUnavailable,
    FleetFull,
    Forbidden,
    Refusal,
    Unauthorized,
    WorkerIdTaken,
)
from models.jobs import Job
from models.settings import Settings
from models.workers import Worker, WorkerWorkflow
from models.workflows import Recipe
from tasks import catalog, reconcile, registration, reports
from tasks.backend import Backend
from tests.fixtures import FLEET_SECRET, MakePerson, Person
from tests.tasks import gpu, orders


@pytest.fixture
def ada(demo: Backend, person: MakePerson) -> Person:
    return person(tokens=100)


def attempts(backend: Backend, job: Job) -> int:
    dispatch = orders.dispatch_of(backend, job)
    assert dispatch is not None
    return dispatch.attempts


def make_fleet(backend: Backend, *, max_workers: int = 50) -> str:
    slug = f"f-{uuid4().hex[:8]}"
    with backend.databases.central() as session:
        fleets.put(session, stage="dev", slug=slug, name="F", max_workers=max_workers)
    return slug


# Leaving


def test_a_job_whose_workers_all_leave_is_given_up_after_its_last_try(
    demo: Backend, ada: Person
) -> None:
    job = orders.order(demo, ada)
    for attempt in (1, 2, 3):
        worker = gpu.join(demo)
        lease = gpu.take(demo, worker)
        registration.deregister(demo, worker)
        assert attempts(demo, job) == attempt
        assert lease.dispatch_id
    assert gpu.poll(demo, gpu.join(demo)) is None  # no try is left
    assert reconcile.run_once(demo).given_up == 1
    with demo.databases.tenant(ada.tenant_id) as session:
        ended = session.get_one(Job, job.id)
        assert (ended.status, ended.error_code) == ("failed", "attempts_exhausted")
        assert ledger.balance(session, user_id=ada.user_id) == 100


def test_leaving_touches_nobody_elses_job(demo: Backend, ada: Person) -> None:
    for _ in range(2):
        orders.order(demo, ada)
    stays, leaves = gpu.join(demo), gpu.join(demo)
    kept, left = gpu.take(demo, stays), gpu.take(demo, leaves)
    registration.deregister(demo, leaves)
    with demo.databases.central(read_only=True) as session:
        now = utcnow()
        for lease, is_over in ((kept, False), (left, True)):
            expires = dispatches.check(session, lease).lease_expires_at
            assert expires is not None
            assert (expires <= now) == is_over
        log = session.scalars(select(AuditLog).where(AuditLog.event == "worker.deregister")).one()
    assert (log.actor, log.details["abandoned"]) == (leaves.actor, 1)
    assert gpu.take(demo, stays).dispatch_id == left.dispatch_id


def test_whoever_left_may_still_finish_until_somebody_took_over(demo: Backend, ada: Person) -> None:
    """It is the lease that counts. (Over HTTP its token is refused by then.)"""
    orders.order(demo, ada)
    worker = gpu.join(demo)
    lease = gpu.take(demo, worker)
    registration.deregister(demo, worker)
    assert reports.fail(demo, worker, lease, error="x") == "failed"


# Coming in


def test_a_locked_out_worker_does_not_come_back_under_its_name(demo: Backend) -> None:
    token = gpu.register(demo, "i-1")
    with demo.databases.central() as session:
        session.execute(update(Worker).values(is_approved=False))
    old = {"secret": FLEET_SECRET, "old_token": token}
    with pytest.raises(Forbidden):
        registration.register(demo, gpu.request("i-1"), **old)
    with demo.databases.central() as session:
        session.execute(update(Worker).values(last_seen_at=utcnow() - timedelta(days=2)))
    with pytest.raises(Forbidden):
        gpu.register(demo, "i-1")


def test_a_locked_out_worker_takes_no_place(demo: Backend) -> None:
    slug = make_fleet(demo, max_workers=1)
    gpu.register(demo, fleet_slug=slug)
    with demo.databases.central() as session:
        session.execute(update(Worker).values(is_approved=False))
    gpu.register(demo, fleet_slug=slug)
    with pytest.raises(FleetFull):
        gpu.register(demo, fleet_slug=slug)


def test_a_draining_worker_that_starts_anew_is_still_draining(demo: Backend) -> None:
    token = gpu.register(demo, "i-1")
    with demo.databases.central() as session:
        enlisted.drain(session, "i-1")
    anew = registration.register(demo, gpu.request("i-1"), secret=FLEET_SECRET, old_token=token)
    assert gpu.identify(demo, anew.token).is_draining


def test_a_fleet_that_is_switched_off_lets_nobody_in(demo: Backend) -> None:
    slug = make_fleet(demo)
    with demo.databases.central() as session:
        fleets.get(session, stage="dev", slug=slug).is_active = False
    with pytest.raises(Refusal, match="switched off"):
        gpu.register(demo, fleet_slug=slug)


def test_a_wrong_secret_does_not_tell_whether_a_fleet_exists(demo: Backend) -> None:
    told = set()
    for slug in ("gpu-default", "no-such-fleet"):
        with pytest.raises(Unauthorized) as refusal:
            registration.register(demo, gpu.request(fleet_slug=slug), secret="wrong")
        told.add(refusal.value.detail)
    assert len(told) == 1


def at_once(registrations: list[Callable[[], str]]) -> list[str | Refusal]:
    """The token of each that was let in, and why the others were not."""
    start = threading.Barrier(len(registrations))

    def come(register: Callable[[], str]) -> str | Refusal:
        start.wait(timeout=30)
        try:
            return register()
        except Refusal as refusal:
            return refusal

    with ThreadPoolExecutor(len(registrations)) as threads:
        return list(threads.map(come, registrations))


def test_two_at_once_do_not_both_get_the_last_place(postgres: Backend) -> None:
    slug = make_fleet(postgres, max_workers=3)
    for _ in range(2):
        gpu.register(postgres, fleet_slug=slug)
    came = at_once([lambda: gpu.register(postgres, fleet_slug=slug)] * 6)
    assert len([token for token in came if isinstance(token, str)]) == 1
    assert [type(one) for one in came].count(FleetFull) == 5


@pytest.mark.parametrize("fleets_of", ["one fleet", "two fleets"])
def test_two_at_once_do_not_both_get_one_name(postgres: Backend, fleets_of: str) -> None:
    first = make_fleet(postgres)
    second = first if fleets_of == "one fleet" else make_fleet(postgres)
    slugs = [first, second] * 3
    came = at_once(
        [lambda slug=slug: gpu.register(postgres, "i-1", fleet_slug=slug) for slug in slugs]  # type: ignore[misc]
    )
    [token] = [token for token in came if isinstance(token, str)]
    assert [type(one) for one in came].count(WorkerIdTaken) == 5
    assert gpu.identify(postgres, token).worker_id == "i-1"


def test_a_worker_that_comes_while_a_workflow_is_mapped_may_run_it(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    slug = make_fleet(postgres)
    with ThreadPoolExecutor(1) as thread:
        with postgres.databases.central() as session:
            fleet = fleets.get(session, stage="dev", slug=slug)
            fleets.assign(session, fleet, workflow_id=workflows.get(session, "image-invert").id)
            coming = thread.submit(gpu.join, postgres, fleet_slug=slug)
        assert len(coming.result(timeout=30).workflow_ids) == 1


# What workers may run


def test_a_workflow_mapped_later_is_given_to_the_workers_of_that_fleet_only(demo: Backend) -> None:
    here, elsewhere = gpu.join(demo), gpu.join(demo, fleet_slug=make_fleet(demo))
    recipe = Recipe(graph={}, output_node_id=None, properties=[])
    with demo.databases.central() as session:
        new = workflows.put(session, slug="new", name="New", kind="image", recipe=recipe)
        fleet = fleets.get(session, stage="dev", slug=gpu.FLEET)
        for _ in range(2):  # again, with nothing left to give
            fleets.assign(session, fleet, workflow_id=new.id)
    with demo.databases.central(read_only=True) as session:
        given = session.scalars(
            select(WorkerWorkflow.worker_id).where(WorkerWorkflow.workflow_id == new.id)
        )
        assert list(given) == [here.id] != [elsewhere.id]


def test_a_workflow_that_is_switched_on_again_runs_on_workers_that_came_meanwhile(
    demo: Backend, ada: Person
) -> None:
    def switch(on: bool) -> None:
        with demo.databases.central() as session:
            workflows.get(session, orders.EFFECT).is_active = on

    switch(False)
    worker = gpu.join(demo)
    with pytest.raises(EffectUnavailable):
        orders.order(demo, ada)
    switch(True)
    orders.order(demo, ada)
    assert gpu.poll(demo, worker) is not None


# Secrets


@pytest.mark.parametrize(
    ("setting", "slug", "valid"),
    [
        ("", "a", []),
        ("one", "a", ["one"]),
        ("one two", "a", ["one", "two"]),
        ("a=one b=two", "a", ["one"]),
        ("a=one a=two b=three", "a", ["one", "two"]),
        ("a=one any", "b", ["any"]),
        ("a=b=c", "a", ["b=c"]),
        ("cGFk=", "a", ["cGFk="]),  # the end of base64, not a fleet without a secret
        ("cGE==", "cGE", ["cGE=="]),
    ],
)
def test_secrets_that_open_a_fleet(setting: str, slug: str, valid: list[str]) -> None:
    assert Settings(fleet_secrets=setting).fleet_secrets_for(slug) == valid
