"""Deliveries are sent, tried again, given up and fenced, and nobody waits for a dead receiver."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from models import deliveries, delivery_claims, messages, webhooks
from models.audit import AuditLog
from models.base import row_id, utcnow
from models.delivery_claims import Claim, Tried
from models.webhooks import WebhookDelivery, WebhookEndpoint
from tasks import sweepers, webhook_courier
from tasks.backend import Backend
from tasks.webhook_courier import Courier, courier_of, send_all_due
from tasks.webhook_delivery import Outcome
from tests.fixtures import MakePerson, Person, make_person
from tests.tasks.receivers import (
    Receiver,
    deliveries_of,
    drip,
    endpoint,
    nowhere,
    receiver,
    rude,
    sending,
    stored,
)

DELIVERED, PUT_OFF, FAILED = Outcome.DELIVERED, Outcome.PUT_OFF, Outcome.FAILED
PAUSES = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
DAY = timedelta(days=1)


@pytest.fixture
def house(backend: Backend) -> Iterator[Backend]:
    """May send to loopback."""
    with sending(backend) as other:
        yield other


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def ada(house: Backend, person: MakePerson) -> Person:
    return person()


def tell(backend: Backend, person: Person, times: int = 1) -> None:
    """So many jobs of this person ended."""
    with backend.databases.central() as session:
        for _ in range(times):
            message = messages.job_ended(
                job_id=row_id(),
                user_id=person.user_id,
                status="completed",
                error_code=None,
                at=utcnow(),
            )
            deliveries.tell(session, person.tenant_id, message)


def counted(done: Counter[Outcome]) -> dict[Outcome, int]:
    return {outcome: number for outcome, number in done.items() if outcome != Outcome.NOTHING}


def send(backend: Backend, now: datetime | None = None) -> dict[Outcome, int]:
    return counted(send_all_due(backend, now=now))


def test_what_is_due_is_sent_once(house: Backend, hook: Receiver, ada: Person) -> None:
    made = endpoint(house, ada, hook.url)
    tell(house, ada, 3)
    assert send(house) == {DELIVERED: 3}
    assert send(house) == {}
    assert send(house, utcnow() + 20 * DAY) == {}
    rows = deliveries_of(house)
    assert {row.message_id for row in rows} == set(hook.ids)
    assert len(hook.received) == 3
    for row in rows:
        assert (row.status, row.attempts, row.response_status) == ("delivered", 1, 200)
        assert (row.last_error, row.due_at) == (None, None)
        assert row.delivered_at is not None
        [entry] = row.log
        assert set(entry) == {"at", "status", "milliseconds", "error"}
    by_id = {row.message_id: row.payload for row in rows}
    for one in hook.received:
        assert one.verified(made.secret) == by_id[one.message_id]


def test_tries_follow_the_schedule_and_then_end(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    made = endpoint(house, ada, hook.url)
    hook.status = 500
    tell(house, ada)
    now = utcnow() + timedelta(seconds=1)
    for number, pause in enumerate(PAUSES, start=1):
        assert send(house, now) == {PUT_OFF: 1}
        assert send(house, now + timedelta(seconds=pause) - timedelta(seconds=1)) == {}
        [row] = deliveries_of(house)
        assert (row.status, row.attempts, len(hook.received)) == ("pending", number, number)
        waits = (row.next_attempt_at - now).total_seconds()
        assert pause <= waits <= pause * 1.1 + 60
        now = row.next_attempt_at
    assert send(house, now) == {FAILED: 1}
    [row] = deliveries_of(house)
    assert (row.status, row.attempts, row.response_status) == ("failed", 10, 500)
    assert row.last_error == "The receiver answered 500."
    assert len(row.log) == 10
    assert set(hook.ids) == {row.message_id}  # the same id at every try
    assert send(house, now + 20 * DAY) == {}
    assert stored(house, made).failing_since is not None


def test_a_receiver_that_comes_back_is_well_again(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    made = endpoint(house, ada, hook.url)
    hook.status = 503
    tell(house, ada)
    send(house)
    assert stored(house, made).failing_since is not None
    hook.status = 204
    assert send(house, utcnow() + timedelta(seconds=6)) == {DELIVERED: 1}
    assert stored(house, made).failing_since is None
    [row] = deliveries_of(house)
    assert [entry["status"] for entry in row.log] == [503, 204]
    assert (row.last_error, row.response_status) == (None, 204)


@pytest.mark.parametrize(
    ("asked", "seconds"), [("3", 5), ("120", 120), ("99999999", 86_400), ("x", 5)]
)
def test_a_longer_pause_is_granted_within_reason(
    house: Backend, hook: Receiver, ada: Person, asked: str, seconds: int
) -> None:
    endpoint(house, ada, hook.url)
    hook.status, hook.headers = 429, {"Retry-After": asked}
    tell(house, ada)
    now = utcnow() + timedelta(seconds=1)
    send(house, now)
    [row] = deliveries_of(house)
    assert seconds <= (row.next_attempt_at - now).total_seconds() <= seconds * 1.1 + 60


def test_410_switches_the_endpoint_off_for_good(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    made = endpoint(house, ada, hook.url)
    tell(house, ada)
    hook.status = 410
    assert send(house) == {FAILED: 1}
    off = stored(house, made)
    assert (off.is_active, "410" in (off.disabled_reason or "")) == (False, True)
    with house.databases.central(read_only=True) as session:
        [row] = session.query(AuditLog).filter_by(event="webhook.disable")
        assert (row.actor, row.tenant_id) == ("system", ada.tenant_id)
    tell(house, ada)
    assert send(house, utcnow() + 20 * DAY) == {}
    assert len(hook.received) == len(deliveries_of(house)) == 1


def test_days_of_nothing_but_failures_switch_it_off_and_its_owner_on(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    made = endpoint(house, ada, hook.url)
    hook.status = 500
    tell(house, ada)
    began = utcnow()
    for day in (0, 1, 4):
        send(house, began + day * DAY)
        assert stored(house, made).is_active
    tell(house, ada)  # news do not begin a new count
    send(house, began + 5 * DAY)
    off = stored(house, made)
    assert not off.is_active
    assert off.disabled_reason == (
        "Every try failed for 5 days. The last one: The receiver answered 500."
    )
    waiting = [row.status for row in deliveries_of(house)]
    assert "pending" in waiting  # kept, for when it is switched on again
    assert send(house, began + 6 * DAY) == {}
    hook.status = 200
    with house.databases.central() as session:
        on = webhooks.get(session, made.id, tenant_id=ada.tenant_id, lock=True)
        webhooks.change(on, is_active=True)
    assert send(house, began + 9 * DAY) == {DELIVERED: waiting.count("pending")}
    assert stored(house, made).disabled_reason is None


def test_one_success_in_between_begins_the_count_anew(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    made = endpoint(house, ada, hook.url)
    began = utcnow()
    for day in (0, 3, 6, 9):
        hook.status = 200 if day == 3 else 500
        tell(house, ada)
        send(house, began + day * DAY)
    assert stored(house, made).is_active
    assert stored(house, made).failing_since == began + 6 * DAY


# Many at once


def test_a_black_hole_with_a_thousand_waiting_delays_nobody(
    house: Backend, hook: Receiver, person: MakePerson
) -> None:
    """Its thread waits for each of them; others have threads of their own."""
    ada, bob = person(), person()
    with rude(hang) as hole:
        dead = endpoint(house, bob, hole.url)
        tell(house, bob, 1000)
        endpoint(house, ada, hook.url)
        tell(house, ada, 50)
        courier = Courier(house)
        courier.call()
        wait_until(lambda: len(hook.received) == 50)
        tell(house, ada, 20)  # what comes while it hangs is not delayed either
        courier.call()
        wait_until(lambda: len(hook.received) == 70)
        courier.close()
    assert {row.status for row in deliveries_of(house, dead.id)} == {"pending"}


def test_even_with_more_dead_receivers_than_threads_the_others_are_served(
    backend: Backend, hook: Receiver, person: MakePerson
) -> None:
    with (
        sending(backend, webhook_senders=4, webhook_endpoint_senders=2) as house,
        rude(hang) as hole,
    ):
        for _ in range(12):
            bob = person()
            endpoint(house, bob, hole.url)
            tell(house, bob, 20)
        ada = person()
        endpoint(house, ada, hook.url)
        courier = Courier(house)
        courier.call()
        for number in range(1, 5):
            tell(house, ada, 5)
            courier.call()
            wait_until(lambda expected=5 * number: len(hook.received) == expected)
        courier.close()


def test_dead_receivers_take_turns(backend: Backend, person: MakePerson) -> None:
    """With one thread for all of them, none has to wait until another has nothing left."""
    with sending(backend, webhook_senders=1) as house:
        made = []
        for _ in range(3):
            bob = person()
            made.append(endpoint(house, bob, nowhere()))
            tell(house, bob, 100)
        courier = Courier(house)
        courier.call()

        def tries(one: WebhookEndpoint) -> int:
            return sum(row.attempts for row in deliveries_of(house, one.id))

        wait_until(lambda: all(tries(one) >= 2 for one in made))
        courier.close()
        assert all(tries(one) < 100 for one in made)


def test_few_threads_serve_one_endpoint_and_one_a_failing_one(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    endpoint(house, ada, hook.url)
    hook.before = lambda: time.sleep(0.02)
    tell(house, ada, 60)
    assert send(house) == {DELIVERED: 60}
    assert 1 <= hook.most_at_once <= house.settings.webhook_endpoint_senders
    hook.status, hook.most_at_once = 500, 0
    tell(house, ada, 1)
    send(house)
    tell(house, ada, 10)
    assert send(house, utcnow()) == {PUT_OFF: 10}  # each of them once, however long that takes
    assert hook.most_at_once == 1


def hang(connection: socket.socket) -> None:
    time.sleep(30)


def wait_until(true: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_couriers_at_once_send_everything_once(
    house: Backend, hook: Receiver, person: MakePerson
) -> None:
    for _ in range(4):
        bob = person()
        endpoint(house, bob, hook.url)
        tell(house, bob, 25)
    with sending(house) as other, ThreadPoolExecutor(2) as threads:
        done = sum(threads.map(send_all_due, [house, other]), Counter[Outcome]())
    assert done[DELIVERED] == 100
    assert len(hook.ids) == len(set(hook.ids)) == 100


def test_no_transaction_is_open_while_a_receiver_thinks(postgres: Backend, hook: Receiver) -> None:
    with sending(postgres) as house:
        ada = make_person(house)
        endpoint(house, ada, hook.url)
        tell(house, ada)
        seen: list[int] = []
        hook.before = lambda: seen.append(open_transactions(postgres))
        assert send(house) == {DELIVERED: 1}
    assert seen == [0]


def open_transactions(backend: Backend) -> int:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND state LIKE 'idle in transaction%'"
    )
    with backend.databases.central(read_only=True) as session:
        return session.scalars(text(query)).one()


# Claims


def claimed(backend: Backend, endpoint_id: UUID, now: datetime | None = None) -> Claim | None:
    with backend.databases.central() as session:
        return delivery_claims.claim(session, endpoint_id, now=now or utcnow(), lease_seconds=80)


def took(status: int = 200, error: str | None = None) -> Tried:
    return Tried(utcnow(), 5, status=status, error=error)


def test_a_sender_that_died_loses_nothing(house: Backend, hook: Receiver, ada: Person) -> None:
    """It had claimed the delivery, maybe even sent it. Nobody knows, so it is sent again."""
    made = endpoint(house, ada, hook.url)
    tell(house, ada)
    assert claimed(house, made.id) is not None
    assert send(house) == {}
    assert send(house, utcnow() + timedelta(seconds=81)) == {DELIVERED: 1}
    [row] = deliveries_of(house)
    assert row.attempts == 1


def test_a_sender_that_slept_too_long_can_not_put_off_what_another_delivered(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    made = endpoint(house, ada, hook.url)
    tell(house, ada)
    sleeper = claimed(house, made.id)
    assert sleeper is not None
    later = utcnow() + timedelta(seconds=81)
    assert send(house, later) == {DELIVERED: 1}
    with house.databases.central() as session:
        assert not delivery_claims.note_failed(session, sleeper, took(500, "x"), retry_at=later)
        assert not delivery_claims.note_delivered(session, sleeper, took())
    [row] = deliveries_of(house)
    assert (row.status, row.attempts) == ("delivered", 1)


def test_nor_put_off_what_another_is_just_sending_but_its_yes_counts(
    house: Backend, ada: Person
) -> None:
    made = endpoint(house, ada, nowhere())
    tell(house, ada)
    sleeper = claimed(house, made.id)
    later = utcnow() + timedelta(seconds=81)
    second = claimed(house, made.id, later)
    assert sleeper is not None
    assert second is not None
    with house.databases.central() as session:
        assert not delivery_claims.note_failed(session, sleeper, took(500, "x"), retry_at=later)
        assert delivery_claims.note_delivered(session, sleeper, took())
    with house.databases.central() as session:
        assert not delivery_claims.note_failed(session, second, took(500, "x"), retry_at=None)
    assert [row.status for row in deliveries_of(house)] == ["delivered"]


def test_each_claim_is_had_by_one(postgres: Backend) -> None:
    ada = make_person(postgres)
    made = endpoint(postgres, ada, nowhere())
    tell(postgres, ada, 40)
    with ThreadPoolExecutor(8) as threads:
        had = list(threads.map(lambda _: claimed(postgres, made.id), range(60)))
    ids = [one.delivery_id for one in had if one is not None]
    assert len(ids) == len(set(ids)) == 40


def test_what_is_claimed_and_then_removed_is_left_alone(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    made = endpoint(house, ada, hook.url)
    tell(house, ada)

    def remove() -> None:
        with house.databases.central() as session:
            webhooks.remove(session, made.id)

    hook.before = remove
    hook.status = 500
    assert send(house) == {}
    assert deliveries_of(house) == []


def test_an_endpoint_that_is_switched_off_is_not_sent_to(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    made = endpoint(house, ada, hook.url)
    tell(house, ada)
    with house.databases.central() as session:
        session.get_one(WebhookEndpoint, made.id).is_active = False
    assert claimed(house, made.id) is None
    assert send(house) == {}
    assert hook.received == []


def test_what_is_due_first_is_claimed_first(house: Backend, ada: Person) -> None:
    made = endpoint(house, ada, nowhere())
    tell(house, ada, 5)
    order = [row.id for row in deliveries_of(house)]
    with house.databases.central() as session:
        for age, delivery_id in enumerate(reversed(order)):
            row = session.get_one(WebhookDelivery, delivery_id)
            row.next_attempt_at = utcnow() - timedelta(seconds=age + 1)
    had = [claimed(house, made.id) for _ in range(6)]
    assert [one.delivery_id for one in had if one] == order


def test_endpoints_are_found_however_many_wait_for_one(house: Backend, person: MakePerson) -> None:
    made: list[WebhookEndpoint] = []
    for times in (200, 1, 3, 0):
        bob = person()
        made.append(endpoint(house, bob, nowhere()))
        tell(house, bob, times)
    with house.databases.central() as session:
        session.get_one(WebhookEndpoint, made[2].id).failing_since = utcnow()
    with house.databases.central(read_only=True) as session:
        due = delivery_claims.endpoints_due(session, now=utcnow())
        assert due == {made[0].id: False, made[1].id: False, made[2].id: True}
        assert delivery_claims.endpoints_due(session, now=utcnow() - DAY) == {}


def test_the_log_is_bounded(house: Backend, ada: Person) -> None:
    made = endpoint(house, ada, nowhere())
    tell(house, ada)
    now = utcnow()
    for number in range(30):
        one = claimed(house, made.id, now)
        assert one is not None
        with house.databases.central() as session:
            tried = Tried(now, number, error="x")
            assert delivery_claims.note_failed(session, one, tried, retry_at=now)
    [row] = deliveries_of(house)
    assert row.attempts == 30
    assert [entry["milliseconds"] for entry in row.log] == list(range(10, 30))


# The courier of a process


def test_a_process_has_one_courier_which_ends_with_its_backend(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    endpoint(house, ada, hook.url)
    with sending(house) as other:
        assert courier_of(other) is courier_of(other) is not courier_of(house)
        tell(house, ada, 3)
        assert webhook_courier.run_once(other).delivered == 3
        assert webhook_courier.run_once(other) == webhook_courier.Sent()
        retired = courier_of(other)
    tell(house, ada)
    retired.call()
    assert retired.take_counts()[DELIVERED] == 0
    assert webhook_courier.run_once(house).delivered == 1


def test_calling_does_not_wait_for_receivers(house: Backend, hook: Receiver, ada: Person) -> None:
    go_on = threading.Event()
    hook.before = lambda: go_on.wait(30)
    endpoint(house, ada, hook.url)
    tell(house, ada)
    courier = courier_of(house)
    for _ in range(3):
        courier.call()
    wait_until(lambda: hook.received)
    assert courier.take_counts()[DELIVERED] == 0
    go_on.set()
    courier.wait(30)
    assert courier.take_counts()[DELIVERED] == 1


def test_a_database_that_is_away_ends_a_look_and_not_the_courier(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    endpoint(house, ada, hook.url)
    tell(house, ada)
    nothing = (
        "postgresql+psycopg2://nobody@127.0.0.1:1/x"
        if house.databases.on_postgres
        else "sqlite:////proc/nowhere/at/all.db"
    )
    with sending(house, central_url=nothing) as lost:
        for _ in range(2):
            assert webhook_courier.run_once(lost) == webhook_courier.Sent()
    assert send(house) == {DELIVERED: 1}


def test_a_dripping_receiver_is_put_off(house: Backend, ada: Person) -> None:
    with rude(drip(b"H")) as slow:
        endpoint(house, ada, slow.url)
        tell(house, ada)
        assert send(house) == {PUT_OFF: 1}


def test_what_the_settings_allow_no_more_is_not_sent(
    house: Backend, hook: Receiver, ada: Person
) -> None:
    endpoint(house, ada, hook.url)
    tell(house, ada)
    with sending(house, webhook_http="off") as strict:
        assert send(strict) == {PUT_OFF: 1}
    [row] = deliveries_of(house)
    assert "https://" in (row.last_error or "")
    assert hook.received == []


def test_old_deliveries_are_forgotten(backend: Backend, person: MakePerson) -> None:
    ada = person()
    endpoint(backend, ada, nowhere())
    tell(backend, ada, 3)
    with backend.databases.central() as session:
        session.query(WebhookDelivery).update({"created_at": utcnow() - 31 * DAY})
    tell(backend, ada)
    assert sweepers.run_once(backend).deliveries_forgotten == 3
    assert sweepers.run_once(backend).deliveries_forgotten == 0
    assert len(deliveries_of(backend)) == 1
