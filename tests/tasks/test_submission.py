"""Ordering a job: what it writes, in which order, and what a crash leaves behind."""

import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import psycopg2
import pytest
from redis import Redis

from models import (
    effects,
    fleets,
    hot_path,
    ledger,
    ledger_audit,
    prepared,
    videos,
    workflows,
)
from models.base import utcnow
from models.errors import (
    EffectUnavailable,
    IdempotencyKeyReused,
    InsufficientTokens,
    InvalidInput,
    NotFound,
    TooManyActiveJobs,
)
from models.jobs import Job, JobStatus
from models.ledger import Transaction
from models.orders import Order
from models.orders import submit as take_order
from tasks import outcomes, reconcile, submission
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person, make_person
from tests.tasks import orders
from tests.tasks.crashing_submit import EXIT_CODE


def balance(backend: Backend, person: Person) -> int:
    with backend.databases.tenant(person.tenant_id) as session:
        return ledger.balance(session, user_id=person.user_id)


def all_jobs(backend: Backend, person: Person) -> list[Job]:
    with backend.databases.tenant(person.tenant_id) as session:
        return session.query(Job).all()


def test_a_submit_leaves_a_queued_job_its_dispatch_and_a_ticket(
    demo: Backend, person: MakePerson
) -> None:
    ada = person(tokens=100)
    job = orders.order(demo, ada)
    assert job.status == JobStatus.QUEUED
    demo.later.close()  # does what could wait: the ticket, the note that it is queued
    [stored] = all_jobs(demo, ada)
    assert (stored.id, stored.status) == (job.id, JobStatus.QUEUED)
    assert balance(demo, ada) == 100 - job.price_tokens
    dispatch = orders.dispatch_of(demo, job)
    assert dispatch is not None
    assert (dispatch.status, dispatch.user_id) == ("queued", ada.user_id)
    with Redis.from_url(demo.settings.redis_url) as redis:
        assert redis.llen("gpu-default") == 1


def test_the_same_request_again_is_the_same_job(demo: Backend, person: MakePerson) -> None:
    ada = person(tokens=100)
    request = orders.request(ada, key="k")
    first = submission.submit(demo, request)
    again = submission.submit(demo, request)
    assert (first.is_new, again.is_new) == (True, False)
    assert first.job.id == again.job.id
    assert len(all_jobs(demo, ada)) == 1
    assert balance(demo, ada) == 100 - first.job.price_tokens


def test_the_same_key_for_another_order_is_refused(demo: Backend, person: MakePerson) -> None:
    ada = person(tokens=100)
    orders.order(demo, ada, key="k")
    with pytest.raises(IdempotencyKeyReused):
        orders.order(demo, ada, key="k", effect="slow-invert")
    with pytest.raises(IdempotencyKeyReused):
        orders.order(demo, ada, key="k", width=128)


def test_keys_belong_to_a_user(demo: Backend, person: MakePerson) -> None:
    ada, bob = person(tokens=100), person(tokens=100)
    assert orders.order(demo, ada, key="k").id != orders.order(demo, bob, key="k").id


def test_refusals_write_nothing(demo: Backend, person: MakePerson) -> None:
    ada = person()
    demands: list[tuple[type[Exception], dict[str, object]]] = [
        (NotFound, {"effect": "no-such-effect"}),
        (InvalidInput, {"nonsense": 1}),
        (InvalidInput, {"width": "wide"}),
        (InvalidInput, {"effect": "image-invert"}),  # needs an image
        (InsufficientTokens, {}),
    ]
    for refusal, given in demands:
        with pytest.raises(refusal):
            orders.order(demo, ada, **given)
    assert all_jobs(demo, ada) == []
    assert balance(demo, ada) == 0


def test_an_effect_that_is_off_or_has_no_fleet_is_unavailable(
    demo: Backend, person: MakePerson
) -> None:
    ada = person(tokens=100)
    replayable = orders.order(demo, ada, key="before")
    with demo.databases.central() as session:
        session.query(effects.Effect).filter_by(slug=orders.EFFECT).one().is_active = False
        session.query(fleets.WorkflowFleet).delete()
    for effect in (orders.EFFECT, "slow-invert"):
        with pytest.raises(EffectUnavailable):
            orders.order(demo, ada, effect=effect)
    assert orders.order(demo, ada, key="before").id == replayable.id


def test_six_active_jobs_are_one_too_many(demo: Backend, person: MakePerson) -> None:
    ada = person(tokens=1000)
    made = [orders.order(demo, ada) for _ in range(5)]
    with pytest.raises(TooManyActiveJobs):
        orders.order(demo, ada)
    outcomes.cancel(demo, ada.tenant_id, made[0].id)
    assert orders.order(demo, ada).status == JobStatus.QUEUED


def test_the_hot_path_writes_what_the_plain_path_writes(postgres: Backend) -> None:
    """Row by row, but for ids and times."""
    submission_rows = []
    for hot in (True, False):
        ada = make_person(postgres, tokens=50)
        order = replace(plain_order(ada), user_id=ada.user_id)
        if hot:
            job = hot_path.submit(postgres.databases, ada.tenant_id, order, max_active=5)
            assert job is not None
        else:
            with postgres.databases.tenant(ada.tenant_id) as session:
                take_order(session, order, max_active=5)
        submission_rows.append(rows_of(postgres, ada))
    assert submission_rows[0] == submission_rows[1]


def plain_order(person: Person) -> Order:
    return Order(
        user_id=person.user_id,
        effect_id=uuid4(),
        effect_slug="e",
        workflow_id=uuid4(),
        provider="self_hosted",
        price_tokens=20,
        idempotency_key="k",
        fingerprint="f",
        input_payload={"values": {"a": "ü"}, "media": {}, "primary": None, "content_hash": "x"},
    )


def rows_of(backend: Backend, person: Person) -> dict[str, object]:
    varying = {"_sa_instance_state", "outputs", "provider_transaction_id", "created_at"}
    varying |= {column.name for column in Job.__table__.c if column.name.endswith("id")}
    varying |= {"wallet_id", "job_id"}
    with backend.databases.tenant(person.tenant_id) as session:
        job = session.query(Job).one()
        entries = session.query(Transaction).order_by(Transaction.amount).all()
        return {
            "job": {k: v for k, v in vars(job).items() if k not in varying},
            "entries": [{k: v for k, v in vars(e).items() if k not in varying} for e in entries],
            "balance": ledger.balance(session, user_id=person.user_id),
        }


def test_the_hot_path_takes_a_video_as_the_plain_path_does(postgres: Backend) -> None:
    ada, bob = make_person(postgres, tokens=50), make_person(postgres, tokens=50)
    own, foreign = orders.add_video(postgres, ada), orders.add_video(postgres, bob)
    payload = {"values": {}, "media": {"image": "image"}, "primary": "image"}
    order = replace(plain_order(ada), input_payload=payload)
    wrong_kind = replace(order, input_payload=payload | {"media": {"image": "video"}})
    for refused in (
        replace(order, video_id=foreign),
        replace(order, video_id=uuid4()),
        replace(wrong_kind, video_id=own),
    ):
        assert hot_path.submit(postgres.databases, ada.tenant_id, refused, max_active=5) is None
    taken = replace(order, video_id=own)
    assert hot_path.submit(postgres.databases, ada.tenant_id, taken, max_active=5) is not None
    with postgres.databases.tenant(ada.tenant_id) as session:
        assert videos.get(session, own, user_id=ada.user_id).status == "processing"


@pytest.mark.parametrize("tokens", [50, 10])
def test_the_hot_path_leaves_what_is_not_ordinary_to_the_plain_path(
    postgres: Backend, tokens: int
) -> None:
    ada = make_person(postgres, tokens=tokens)
    order = plain_order(ada)
    submits = [
        hot_path.submit(postgres.databases, ada.tenant_id, order, max_active=limit)
        for limit in (0, 5, 5)
    ]
    paid = tokens >= 20
    assert [job is not None for job in submits] == [False, paid, False]
    assert len(all_jobs(postgres, ada)) == int(paid)
    assert balance(postgres, ada) == (tokens - 20 if paid else tokens)


def environment(backend: Backend, person: Person) -> dict[str, str]:
    given = {f"COMFYFLEET_{k.upper()}": str(v) for k, v in vars(backend.settings).items()}
    people = {"CRASH_TENANT": str(person.tenant_id), "CRASH_USER": str(person.user_id)}
    return os.environ | given | people


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commit", [1, 2, 3])
def test_a_crash_at_any_commit_loses_neither_job_nor_token(
    demo: Backend, person: MakePerson, commit: int, moment: str
) -> None:
    """A real process that really dies; then only the reconciler."""
    ada = person(tokens=100)
    child = subprocess.run(
        [sys.executable, "-m", "tests.tasks.crashing_submit", str(commit), moment],
        env=environment(demo, ada),
        timeout=60,
        capture_output=True,
    )
    last = commit == 3 and moment == "after"  # no transaction follows the third
    assert child.returncode == (0 if last else EXIT_CODE), child.stderr.decode()
    reconcile.run_once(demo, now=utcnow() + timedelta(seconds=30))
    made = all_jobs(demo, ada)
    if commit == 1 and moment == "before":
        assert made == []
        assert balance(demo, ada) == 100
    else:
        [job] = made
        assert job.status == JobStatus.QUEUED
        assert balance(demo, ada) == 100 - job.price_tokens
        assert orders.dispatch_of(demo, job) is not None
    # And whoever sent the request sends it again, and has one job in the end.
    again = orders.order(demo, ada, key="the-one")
    assert [job.id for job in all_jobs(demo, ada)] == [again.id]
    with demo.databases.pool("main") as session:
        assert list(ledger_audit.disagreements(session)) == []


def test_a_job_that_nobody_can_dispatch_is_refunded(demo: Backend, person: MakePerson) -> None:
    ada = person(tokens=100)
    with demo.databases.central(read_only=True) as session:
        offer = submission.find_offer(session, orders.EFFECT, stage=demo.settings.stage)
    order = submission._order(orders.request(ada), offer)
    with demo.databases.tenant(ada.tenant_id) as session:
        take_order(session, order, max_active=5)
    with demo.databases.central() as session:
        session.query(fleets.WorkflowFleet).delete()
    soon, late = utcnow() + timedelta(seconds=60), utcnow() + timedelta(seconds=301)
    assert reconcile.run_once(demo, now=soon).orphans_refunded == 0
    assert reconcile.run_once(demo, now=late).orphans_refunded == 1
    assert reconcile.run_once(demo, now=late).orphans_refunded == 0
    [job] = all_jobs(demo, ada)
    assert (job.status, job.error_code) == (JobStatus.FAILED, "submission_timeout")
    assert balance(demo, ada) == 100


def test_a_job_is_healed_for_the_workflow_it_was_ordered_with(
    demo: Backend, person: MakePerson
) -> None:
    """Its effect uses another workflow, on another fleet, by the time it is healed."""
    ada = person(tokens=100)
    with demo.databases.central(read_only=True) as session:
        offer = submission.find_offer(session, orders.EFFECT, stage=demo.settings.stage)
    request = orders.request(ada, key="k")
    with demo.databases.tenant(ada.tenant_id) as session:
        take_order(session, submission._order(request, offer), max_active=5)
    with demo.databases.central() as session:
        effect = session.query(effects.Effect).filter_by(slug=orders.EFFECT).one()
        other = workflows.get(session, "slow-invert")
        effect.workflow = other
        fleet = fleets.put(session, stage=demo.settings.stage, slug="elsewhere", name="E")
        fleets.assign(session, fleet, workflow_id=other.id)
    job = orders.order(demo, ada, key="k")  # the same request again heals it
    dispatch = orders.dispatch_of(demo, job)
    assert dispatch is not None
    assert (dispatch.workflow_id, dispatch.fleet_id) == (offer.effect.workflow_id, offer.fleet.id)


def test_an_error_on_the_hot_path_leaves_the_pool_alone(postgres: Backend) -> None:
    """One connection is thrown away, not all of them."""
    engine = postgres.databases.engine("central")
    pool = engine.pool
    broken = prepared.Prepared("divide", "SELECT 1 / %(by)s", {"by": "integer"})
    with pytest.raises(psycopg2.errors.DivisionByZero):
        prepared.round_trip(engine, broken, values={"by": 0})
    assert engine.pool is pool
    assert prepared.round_trip(engine, broken, values={"by": 1}) == (1,)


def test_a_price_that_changes_shows_after_a_moment(demo: Backend, person: MakePerson) -> None:
    """Effects are remembered for a few seconds; the fixture asks for none."""
    ada = person(tokens=100)
    settings = replace(demo.settings, catalog_seconds=3600)
    remembering = Backend.open(settings)
    first = orders.order(remembering, ada)
    with demo.databases.central() as session:
        session.query(effects.Effect).filter_by(slug=orders.EFFECT).one().credits_cost = 77
    assert orders.order(remembering, ada).price_tokens == first.price_tokens
    remembering.offers.put(orders.EFFECT, None)  # as if the time were over
    assert orders.order(remembering, ada).price_tokens == 77
    remembering.close()
