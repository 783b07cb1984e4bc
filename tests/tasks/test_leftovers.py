"""What lost leases left in the storage goes; what rows name, or a job that runs may need, stays."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text

from models import object_paths
from models.base import utcnow
from models.dispatches import Dispatch, Lease
from models.errors import LeaseLost
from models.session import make_engine
from models.workers import Identity
from tasks import catalog, heartbeats, leftovers, outcomes, reconcile, reports
from tasks.backend import Backend
from tasks.leftovers import Swept
from tests.fixtures import Person, make_person
from tests.tasks import away, gpu, media, orders

HOURS = timedelta(seconds=2 * 3600 + 60)
ALL_IS_WELL = Swept()


@pytest.fixture
def ada(demo: Backend) -> Person:
    return make_person(demo, tokens=1000)


@pytest.fixture(params=["local", "s3"])
def store(demo: Backend, request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "local":
        yield demo
    else:
        with media.on_s3(demo) as other:
            catalog.seed_demo(other)
            yield other


def sweep(backend: Backend, *, later: timedelta = HOURS) -> Swept:
    return leftovers.run_once(backend, now=utcnow() + later)


def leave(backend: Backend, lease: Lease, name: str = "") -> str:
    """An object that a worker uploaded under its lease; the report never came."""
    with backend.databases.central(read_only=True) as session:
        dispatch = session.get_one(Dispatch, lease.dispatch_id)
    key = object_paths.output_key(
        dispatch.tenant_id,
        dispatch.tenant_job_id,
        "image/png",
        lease_token=lease.token,
        name=name,
    )
    backend.store.write(key, b"left", "image/png")
    return key


def lost(backend: Backend, worker: Identity) -> tuple[Lease, str]:
    """A lease with an upload, and then nothing."""
    lease = gpu.take(backend, worker)
    return lease, leave(backend, lease)


def test_what_a_lost_worker_uploaded_goes_and_the_result_stays(store: Backend, ada: Person) -> None:
    worker = gpu.join(store)
    job = orders.order(store, ada)
    _, first = lost(store, worker)
    reconcile.run_once(store, now=utcnow() + timedelta(seconds=181))
    second_lease, second = lost(store, worker)
    outcomes.requeue(store, second_lease, reason="spot")
    media.complete(store, worker)
    [made] = media.results(store, job)
    assert sweep(store, later=timedelta(hours=1)) == ALL_IS_WELL  # an address may still work
    assert sweep(store) == Swept(jobs_swept=1, leftovers_deleted=2)
    assert sweep(store) == ALL_IS_WELL
    assert [store.store.head(key) for key in (first, second)] == [None, None]
    assert media.is_there(store, made)


def forget(backend: Backend, lease: Lease) -> None:
    """As a crash of the database does, which had not written the lease to its disk yet."""
    with backend.databases.central() as session:
        dispatch = session.get_one(Dispatch, lease.dispatch_id)
        dispatch.status, dispatch.attempts = "queued", 0
        dispatch.lease_token = dispatch.lease_expires_at = dispatch.worker_id = None


@pytest.mark.parametrize("told_by", ["heartbeat", "report"])
def test_what_was_uploaded_under_a_lease_that_the_database_forgot_goes(
    demo: Backend, ada: Person, told_by: str
) -> None:
    first, second = gpu.join(demo), gpu.join(demo)
    job = orders.order(demo, ada)
    lease, key = lost(demo, first)
    forget(demo, lease)
    media.complete(demo, second)
    with pytest.raises(LeaseLost):
        if told_by == "heartbeat":
            heartbeats.busy(demo, first, lease)
        else:
            reports.complete(demo, first, lease, outputs=[])
    [made] = media.results(demo, job)
    assert sweep(demo) == Swept(jobs_swept=1, leftovers_deleted=1)
    assert demo.store.head(key) is None
    assert media.is_there(demo, made)


def test_a_worker_of_another_fleet_leads_nobody_to_look(demo: Backend, ada: Person) -> None:
    media.result(demo, ada)
    with demo.databases.central(read_only=True) as session:
        [dispatch] = session.query(Dispatch)
    stranger = Lease(dispatch.id, uuid4(), fleet_id=uuid4())
    with pytest.raises(LeaseLost):
        outcomes.check(demo, stranger)
    assert sweep(demo) == ALL_IS_WELL


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_a_job_without_a_result_leaves_nothing(demo: Backend, ada: Person, end: str) -> None:
    job = orders.order(demo, ada)
    lease, key = lost(demo, gpu.join(demo))
    other = leave(demo, lease, "another.png")
    if end == "cancelled":
        outcomes.cancel(demo, ada.tenant_id, job.id)
    else:
        outcomes.fail(demo, lease, code="x", message="Broke.", error="x")
    assert sweep(demo) == Swept(jobs_swept=1, leftovers_deleted=2)
    assert [demo.store.head(left) for left in (key, other)] == [None, None]


def test_ordinary_jobs_are_not_looked_at(demo: Backend, ada: Person) -> None:
    """The storage is not asked about each job that ever was."""
    media.result(demo, ada)
    assert sweep(demo) == ALL_IS_WELL


def test_what_runs_is_never_touched(demo: Backend, ada: Person) -> None:
    worker = gpu.join(demo)
    orders.order(demo, ada)
    lease, key = lost(demo, worker)
    outcomes.requeue(demo, lease, reason="spot")
    assert sweep(demo, later=timedelta(days=300)) == ALL_IS_WELL
    again = gpu.take(demo, worker)
    held = leave(demo, again)
    assert sweep(demo, later=timedelta(days=300)) == ALL_IS_WELL
    with demo.databases.central() as session:  # as after a restored backup of central
        dispatch = session.get_one(Dispatch, lease.dispatch_id)
        dispatch.status, dispatch.lease_expires_at = "cancelled", None
    assert sweep(demo) == ALL_IS_WELL
    assert all(demo.store.head(one) for one in (key, held))


def test_results_of_a_job_that_is_not_there_are_kept(demo: Backend, ada: Person) -> None:
    """Its pool was restored; a better backup may bring it back."""
    orders.order(demo, ada)
    lease, key = lost(demo, gpu.join(demo))
    outcomes.fail(demo, lease, code="x", message="Broke.", error="x")
    with demo.databases.central() as session:
        session.get_one(Dispatch, lease.dispatch_id).tenant_job_id = uuid4()
    assert sweep(demo) == Swept(jobs_swept=1)
    assert demo.store.head(key) is not None


def test_another_job_of_the_same_user_is_another_folder(demo: Backend, ada: Person) -> None:
    worker = gpu.join(demo)
    first = media.result(demo, ada)
    orders.order(demo, ada)
    lease, _ = lost(demo, worker)
    outcomes.fail(demo, lease, code="x", message="Broke.", error="x")
    assert sweep(demo).leftovers_deleted == 1
    assert all(media.is_there(demo, file) for file in media.results(demo, first))


def test_a_storage_that_is_away_is_asked_again(demo: Backend, ada: Person) -> None:
    orders.order(demo, ada)
    lease, key = lost(demo, gpu.join(demo))
    outcomes.fail(demo, lease, code="x", message="Broke.", error="x")
    nowhere = {"storage_url": "s3://bucket", "s3_endpoint_url": "http://127.0.0.1:1"}
    without = Backend.open(replace(demo.settings, **nowhere))  # type: ignore[arg-type]
    assert sweep(without) == ALL_IS_WELL
    without.close()
    assert sweep(demo) == Swept(jobs_swept=1, leftovers_deleted=1)
    assert demo.store.head(key) is None


def test_a_pool_that_is_away_holds_up_no_other(demo: Backend, ada: Person) -> None:
    bob, worker = make_person(demo, tokens=100, pool="second"), gpu.join(demo)
    keys = []
    for person in (ada, bob):
        orders.order(demo, person)
        lease, key = lost(demo, worker)
        outcomes.fail(demo, lease, code="x", message="Broke.", error="x")
        keys.append(key)
    other = Backend.open(replace(demo.settings, **away.pools(demo, "main")))
    assert sweep(other) == Swept(jobs_swept=1, leftovers_deleted=1)
    other.close()
    assert [demo.store.head(key) is None for key in keys] == [False, True]


def test_two_at_once_delete_the_same(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    ada, worker = make_person(postgres, tokens=1000), gpu.join(postgres)
    for _ in range(5):
        orders.order(postgres, ada)
        lease, _ = lost(postgres, worker)
        outcomes.fail(postgres, lease, code="x", message="Broke.", error="x")
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda _: sweep(postgres), range(4)))
    assert sum(one.jobs_swept for one in done) >= 5
    assert sweep(postgres) == ALL_IS_WELL
    assert list(postgres.store.stale("tenants/", utcnow() + HOURS)) == []


def test_what_is_to_be_swept_is_found_by_its_index(postgres: Backend) -> None:
    """Beside millions of jobs that went well."""
    owner = make_engine(postgres.settings.central_url, as_owner=True)
    with owner.connect() as connection:
        connection.execute(text("SET enable_seqscan = off"))
        plan = "\n".join(
            connection.scalars(
                text(
                    "EXPLAIN SELECT id FROM ai_job_dispatches WHERE"
                    " status IN ('completed', 'failed', 'cancelled') AND swept_at IS NULL"
                    " AND (last_error IS NOT NULL OR status = 'cancelled')"
                    " AND updated_at <= now() ORDER BY updated_at LIMIT 10"
                )
            )
        )
    owner.dispose()
    assert "ix_ai_job_dispatches_littered" in plan
