"""A wallet that falls below the limit is told once, until it rises above it again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from models import ledger, low_wallets
from models.base import utcnow
from models.ledger import Wallet
from models.webhooks import WebhookEndpoint
from tasks import catalog, outcomes, wallet_watch
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person, make_person
from tests.tasks import away, orders
from tests.tasks.receivers import deliveries_of, endpoint

URL = "https://hooks.example.com/"
LIMIT = 50


@pytest.fixture
def house(demo: Backend) -> Iterator[Backend]:
    other = Backend.open(replace(demo.settings, wallet_low_tokens=LIMIT, max_active_jobs=1000))
    yield other
    other.close()


@pytest.fixture
def ada(house: Backend, person: MakePerson) -> Person:
    ada = person(tokens=LIMIT)
    endpoint(house, ada, URL, ["wallet.low"])
    return ada


def watch(backend: Backend) -> int:
    return wallet_watch.run_once(backend).wallets_told


def credit(backend: Backend, person: Person, amount: int) -> None:
    with backend.databases.tenant(person.tenant_id) as session:
        ledger.credit(
            session,
            user_id=person.user_id,
            amount=amount,
            provider_transaction_id=uuid4().hex,
        )


def wallet_of(backend: Backend, person: Person) -> Wallet:
    with backend.databases.tenant(person.tenant_id) as session:
        return session.query(Wallet).filter_by(user_id=person.user_id).one()


def told(backend: Backend) -> list[dict[str, Any]]:
    return [row.payload["data"] for row in deliveries_of(backend) if row.event == "wallet.low"]


def test_an_order_that_takes_it_below_is_told_once(house: Backend, ada: Person) -> None:
    assert watch(house) == 0
    price = orders.order(house, ada).price_tokens
    assert [watch(house) for _ in range(3)] == [1, 0, 0]
    orders.order(house, ada)
    assert watch(house) == 0
    wallet = wallet_of(house, ada)
    assert told(house) == [
        {
            "wallet_id": str(wallet.id),
            "user_id": str(ada.user_id),
            "balance": LIMIT - price,
            "below": LIMIT,
        }
    ]


def test_after_it_rose_the_next_fall_is_told_too(house: Backend, ada: Person) -> None:
    job = orders.order(house, ada)
    assert watch(house) == 1
    outcomes.cancel(house, ada.tenant_id, job.id)  # refunded: at the limit again, not below
    assert watch(house) == 0
    orders.order(house, ada)
    assert watch(house) == 1
    assert len(told(house)) == len({row.message_id for row in deliveries_of(house)}) == 2


def test_a_rise_between_two_looks_counts(house: Backend, ada: Person) -> None:
    orders.order(house, ada)
    assert watch(house) == 1
    credit(house, ada, 100)
    with house.databases.tenant(ada.tenant_id) as session:
        ledger.lock_wallet(session, user_id=ada.user_id).balance -= 100  # spent at once
    assert watch(house) == 1


def test_a_rise_that_does_not_reach_the_limit_changes_nothing(house: Backend, ada: Person) -> None:
    for _ in range(3):
        orders.order(house, ada)
    assert watch(house) == 1
    credit(house, ada, 1)
    orders.order(house, ada)
    assert watch(house) == 0


def test_a_wallet_that_never_held_anything_did_not_fall(house: Backend, person: MakePerson) -> None:
    poor, rich = person(tokens=1), person(tokens=1000)
    for someone in (poor, rich, person()):
        endpoint(house, someone, URL)
    orders.order(house, rich)
    assert watch(house) == 0


def test_only_who_listens_is_told(house: Backend, person: MakePerson) -> None:
    bob = person(tokens=LIMIT)
    endpoint(house, bob, URL, ["job.failed"])
    off = endpoint(house, bob, URL, ["wallet.low"])
    with house.databases.central() as session:
        session.get_one(WebhookEndpoint, off.id).is_active = False
    orders.order(house, bob)
    assert watch(house) == 0
    assert wallet_of(house, bob).low_since is None  # nobody even looked
    endpoint(house, bob, URL, ["wallet.low"])
    assert watch(house) == 1  # it is low now, and this is news to them


@pytest.mark.parametrize("step", ["noted", "told"])
def test_a_crash_between_the_databases_tells_it_once(
    house: Backend, ada: Person, step: str
) -> None:
    orders.order(house, ada)
    if step == "noted":
        with house.databases.pool("main") as session:
            low_wallets.note(session, [ada.tenant_id], below=LIMIT, now=utcnow())
    else:  # died before it could note that they were told
        assert watch(house) == 1
        with house.databases.tenant(ada.tenant_id) as session:
            session.query(Wallet).update({"low_told_at": None})
    assert [watch(house) for _ in range(2)] == [1, 0]
    assert len(told(house)) == 1


def test_what_falls_anew_while_it_is_told_is_not_forgotten(house: Backend, ada: Person) -> None:
    job = orders.order(house, ada)
    with house.databases.pool("main") as session:
        low_wallets.note(session, [ada.tenant_id], below=LIMIT, now=utcnow())
        [low] = low_wallets.untold(session, [ada.tenant_id], limit=9)
    outcomes.cancel(house, ada.tenant_id, job.id)
    orders.order(house, ada)
    with house.databases.pool("main") as session:
        low_wallets.note(session, [ada.tenant_id], below=LIMIT, now=utcnow())
    with house.databases.tenant(ada.tenant_id) as session:
        low_wallets.note_told(session, low, now=utcnow())  # of the first fall
    assert watch(house) == 1


def test_a_limit_that_was_lowered_counts_anew(house: Backend, ada: Person) -> None:
    orders.order(house, ada)
    assert watch(house) == 1
    balance = wallet_of(house, ada).balance
    lower = Backend.open(replace(house.settings, wallet_low_tokens=balance))
    assert watch(lower) == 0
    orders.order(lower, ada)
    assert watch(lower) == 1
    lower.close()


def test_without_a_limit_nobody_is_told(house: Backend, ada: Person) -> None:
    orders.order(house, ada)
    off = Backend.open(replace(house.settings, wallet_low_tokens=0))
    assert watch(off) == 0
    off.close()


def test_a_pool_that_is_away_holds_up_no_other(house: Backend, person: MakePerson) -> None:
    for pool in ("main", "second"):
        someone = person(tokens=LIMIT, pool=pool)
        endpoint(house, someone, URL)
        orders.order(house, someone)
    lost = Backend.open(replace(house.settings, **away.pools(house, "main")))
    assert watch(lost) == 1
    lost.close()
    assert watch(house) == 1


@pytest.fixture
def on_postgres(postgres: Backend) -> Iterator[Backend]:
    catalog.seed_demo(postgres)
    other = Backend.open(replace(postgres.settings, wallet_low_tokens=LIMIT))
    yield other
    other.close()


def test_watches_at_once_tell_it_once(on_postgres: Backend) -> None:
    for _ in range(10):
        someone = make_person(on_postgres, tokens=LIMIT)
        endpoint(on_postgres, someone, URL)
        orders.order(on_postgres, someone)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: watch(on_postgres), range(8)))
    assert watch(on_postgres) == 0
    assert len(told(on_postgres)) == 10


def test_watching_does_not_wait_for_an_order(on_postgres: Backend) -> None:
    """A wallet that somebody holds right now is looked at the next time."""
    ada = make_person(on_postgres, tokens=LIMIT)
    endpoint(on_postgres, ada, URL)
    orders.order(on_postgres, ada)
    with (
        on_postgres.databases.tenant(ada.tenant_id) as session,
        ThreadPoolExecutor(1) as thread,
    ):
        ledger.lock_wallet(session, user_id=ada.user_id)
        assert thread.submit(watch, on_postgres).result(30) == 0
    assert watch(on_postgres) == 1
