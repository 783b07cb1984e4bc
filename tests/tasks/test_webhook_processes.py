"""Real control workers, real receivers: calls that come and calls that got lost, kill -9 while a
message is under way, and two workers at once."""

import threading
from collections import Counter
from pathlib import Path

import pytest
from redis import Redis

from models import control_turns
from models.base import utcnow
from models.webhooks import WebhookDelivery
from tasks import catalog, outcomes
from tasks.backend import Backend
from tests.fixtures import Person, make_person
from tests.tasks import orders
from tests.tasks.control_workers import control_worker, control_workers, until
from tests.tasks.receivers import deliveries_of, endpoint, receiver, sending

NEVER = 3600


def end_jobs(backend: Backend, person: Person, times: int) -> None:
    for _ in range(times):
        outcomes.cancel(backend, person.tenant_id, orders.order(backend, person).id)


def has_begun(backend: Backend) -> bool:
    """What a worker does first of all, as it starts, is behind it."""
    with backend.databases.central(read_only=True) as session:
        return "deliver_webhooks" in {turn.name for turn in control_turns.all_turns(session)}


@pytest.fixture
def ada(postgres: Backend) -> Person:
    catalog.seed_demo(postgres)
    return make_person(postgres, tokens=1000)


def test_what_has_happened_is_sent_at_once(postgres: Backend, ada: Person, tmp_path: Path) -> None:
    """By a call: this worker would look by itself in an hour."""
    with (
        sending(postgres, webhook_poll_seconds=NEVER) as house,
        receiver() as hook,
        control_worker(house, tmp_path, "one") as worker,
    ):
        endpoint(house, ada, hook.url)
        until("the worker has begun", lambda: has_begun(house), worker)
        end_jobs(house, ada, 5)
        until("five messages came", lambda: len(hook.received) == 5, worker)


def test_a_call_that_got_lost_costs_a_moment(
    postgres: Backend, ada: Person, tmp_path: Path
) -> None:
    with (
        sending(postgres, webhook_poll_seconds=1) as house,
        receiver() as hook,
        control_worker(house, tmp_path, "one") as worker,
    ):
        endpoint(house, ada, hook.url)
        until("the worker has begun", lambda: has_begun(house), worker)
        with sending(house, redis_url="redis://127.0.0.1:1/0") as without_redis:
            end_jobs(without_redis, ada, 3)
        until("three messages came", lambda: len(hook.received) == 3, worker)
        with Redis.from_url(house.settings.redis_url) as redis:
            redis.flushdb()
        end_jobs(house, ada, 3)
        until("three more came", lambda: len(hook.received) == 6, worker)


def test_a_worker_killed_while_it_sends_loses_nothing(
    postgres: Backend, ada: Person, tmp_path: Path
) -> None:
    go_on = threading.Event()
    with sending(postgres, webhook_answer_seconds=60) as house, receiver() as hook:
        hook.before = lambda: go_on.wait(60)
        made = endpoint(house, ada, hook.url)
        end_jobs(house, ada, 3)
        with control_worker(house, tmp_path, "one") as worker:
            until("a message is under way", lambda: hook.received, worker)
            worker.kill()
        go_on.set()
        under_way = set(hook.ids)
        assert {row.status for row in deliveries_of(house)} == {"pending"}
        with house.databases.central() as session:  # the time of its claims has come
            session.query(WebhookDelivery).update({"next_attempt_at": utcnow()})
        with control_worker(house, tmp_path, "two") as worker:
            until("all are delivered", lambda: delivered(house) == 3, worker)
        came = Counter(hook.ids)
        assert set(came) == {row.message_id for row in deliveries_of(house, made.id)}
        assert all(came[message_id] == 2 for message_id in under_way)


def delivered(backend: Backend) -> int:
    return sum(row.status == "delivered" for row in deliveries_of(backend))


def test_two_workers_share_the_work_and_the_end_of_one(
    postgres: Backend, ada: Person, tmp_path: Path
) -> None:
    """One of them is asked to stop in the middle: what it had begun is finished or left."""
    with (
        sending(postgres, webhook_poll_seconds=1) as house,
        receiver() as hook,
        control_workers(house, tmp_path, "one", "two") as (one, two),
    ):
        people = [ada, *(make_person(house, tokens=1000) for _ in range(3))]
        for person in people:
            endpoint(house, person, hook.url)
        both = (one, two)
        until("both are ready", lambda: all("ready." in each.said() for each in both), *both)
        for person in people:
            end_jobs(house, person, 5)
        until("some came", lambda: len(hook.received) > 5, one, two)
        one.process.terminate()
        for person in people:
            end_jobs(house, person, 5)
        until("all are delivered", lambda: delivered(house) == 40, two)
        assert one.process.wait(30) == 0
        assert set(hook.ids) == {row.message_id for row in deliveries_of(house)}
