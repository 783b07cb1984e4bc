"""The Redis user of a fleet: its workers can do all they need, and nothing to another fleet."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from models.errors import InvalidInput
from models.settings import Settings
from scripts import servers
from tasks import redis_acl
from tasks.redis_acl import FleetUser
from tasks.tickets import TicketForm
from tests.gpu_worker.small_stack import (
    FLEET,
    OTHER_FLEET,
    SmallStack,
    WorkerProcess,
    await_status,
    order_card,
    small_stack,
    until,
)
from tests.webapp.conftest import prepared

PASSWORD = "of the tests: with spaces, a / and an @"


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own: users belong to a whole server, and so does its log of refusals."""
    with servers.redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="module")
def admin(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as redis:
        yield redis


@pytest.fixture(scope="module")
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, redis_url: str
) -> Iterator[SmallStack]:
    settings: Settings = prepared(request, tmp_path_factory, redis_url, "sqlite")
    with small_stack(settings, tmp_path_factory.mktemp("workers")) as stack:
        yield stack


def make_user(admin: Redis, user: FleetUser) -> str:
    """As redis-cli gives the line to the server."""
    admin.execute_command(*user.set_user(PASSWORD).split(" "))
    return user.name


def refusals(admin: Redis) -> list[tuple[str, str]]:
    return [(entry["reason"], entry["object"]) for entry in admin.acl_log()]


def commands_of(admin: Redis) -> set[str]:
    """Every command the server was asked for, refused ones too."""
    return set(admin.info("commandstats"))


@pytest.fixture(scope="module")
def mallory(admin: Redis, redis_url: str) -> Iterator[Redis]:
    """Somebody who has the credentials of a fleet."""
    name = make_user(admin, FleetUser(FLEET))
    address = redis_acl.worker_url(redis_url, name, PASSWORD)
    with Redis.from_url(address, driver_info=None) as redis:  # as a worker, it says not who it is
        yield redis


@contextmanager
def confined_worker(stack: SmallStack, admin: Redis, name: str) -> Iterator[WorkerProcess]:
    address = redis_acl.worker_url(stack.redis_url, make_user(admin, FleetUser(FLEET)), PASSWORD)
    with stack.worker(name, COMFYFLEET_REDIS_URL=address) as worker:
        yield worker


def lose_a_ticket(admin: Redis) -> str:
    """A worker took it and died, long ago. Returns the name under which it is kept."""
    message = json.loads(TicketForm(FLEET).fill("lost-ticket", ""))
    tag: str = message["properties"]["delivery_tag"]
    admin.hset(f"{FLEET}.unacked", tag, json.dumps([message, "", FLEET]))
    admin.zadd(f"{FLEET}.unacked_index", {tag: 1})
    return tag


def test_a_confined_worker_does_everything_and_is_refused_nothing(
    stack: SmallStack, admin: Redis
) -> None:
    admin.acl_log_reset()
    lost = lose_a_ticket(admin)
    ada = stack.customer()
    with confined_worker(stack, admin, "w1") as worker, stack.celery() as celery:
        await_status(ada, order_card(ada), "completed")
        # Done by the worker alone so far, a second after it began to listen.
        until("its mailbox is renewed", lambda: "cmdstat_script|exists" in commands_of(admin))
        until("the lost ticket is done", lambda: not admin.hexists(f"{FLEET}.unacked", lost))
        assert celery.control.ping(destination=[worker.node], limit=1) == [
            {worker.node: {"ok": "pong"}}
        ]
        for order in (celery.control.cancel_consumer, celery.control.add_consumer):
            assert order(FLEET, reply=True, limit=1)
        admin.client_kill_filter(_type="normal", skipme=True)
        admin.client_kill_filter(_type="pubsub", skipme=True)
        await_status(ada, order_card(ada), "completed")
        slow = order_card(ada, seconds=30)
        await_status(ada, slow, "processing")
    assert worker.process.returncode == 0
    await_status(ada, slow, "queued")
    assert refusals(admin) == []


#: Of a fleet whose name begins as ours does.
OTHER_MAILBOX = f"gpu@{OTHER_FLEET}.w1.celery.pidbox"

Deed = Callable[[Redis], Any]

FORBIDDEN: dict[str, Deed] = {
    "take another fleet's ticket": lambda r: r.brpop([OTHER_FLEET], timeout=1),
    "ring for another fleet": lambda r: r.lpush(OTHER_FLEET, "x"),
    "count another fleet's tickets": lambda r: r.llen(OTHER_FLEET),
    "read what another fleet has at work": lambda r: r.hget(f"{OTHER_FLEET}.unacked", "x"),
    "forget what another fleet has at work": lambda r: r.delete(f"{OTHER_FLEET}.unacked_index"),
    "hold another fleet's lock": lambda r: r.set(f"{OTHER_FLEET}.unacked_mutex", "x"),
    "look into the mailbox of another fleet": lambda r: r.llen(OTHER_MAILBOX),
    "empty the mailbox of another fleet": lambda r: r.delete(OTHER_MAILBOX),
    "unbind another fleet": lambda r: r.delete(f"_kombu.binding.{OTHER_FLEET}"),
    "give the control worker a task": lambda r: r.lpush("control", "x"),
    "read what the control worker does": lambda r: r.hget("unacked", "x"),
    "read a rate limit": lambda r: r.get("comfyfleet:limits:LIMITER/x"),
    "lift a rate limit": lambda r: r.delete("comfyfleet:limits:LIMITER/x"),
    "order workers about": lambda r: r.publish("/0.celery.pidbox", "x"),
    "listen to events": lambda r: r.execute_command("PSUBSCRIBE", "/0.celeryev/*"),
    "listen to everything": lambda r: r.execute_command("PSUBSCRIBE", "*"),
    "speak on another channel": lambda r: r.publish("news", "x"),
    "read another's answers": lambda r: r.brpop(["u.reply.celery.pidbox"], timeout=1),
    "bind answers to itself": lambda r: r.sadd("_kombu.binding.reply.celery.pidbox", "x"),
    "see all keys": lambda r: r.keys("*"),
    "walk through all keys": lambda r: r.scan(),
    "empty the server": lambda r: r.flushall(),
    "empty the database": lambda r: r.flushdb(),
    "go to another database": lambda r: r.execute_command("SELECT", "1"),
    "read the configuration": lambda r: r.config_get("*"),
    "see the clients": lambda r: r.client_list(),
    "watch all commands": lambda r: r.execute_command("MONITOR"),
    "make users": lambda r: r.execute_command("ACL", "SETUSER", "x"),
    "stop the server": lambda r: r.execute_command("SHUTDOWN"),
    "run a script on another fleet": lambda r: r.evalsha(
        r.script_load("return redis.call('LLEN', KEYS[1])"), 1, OTHER_FLEET
    ),
    "run a script with a hidden key": lambda r: r.evalsha(
        r.script_load(f"return redis.call('LLEN', '{OTHER_FLEET}')"), 0
    ),
    "run a script that speaks": lambda r: r.evalsha(
        r.script_load("return redis.call('PUBLISH', '/0.celery.pidbox', 'x')"), 0
    ),
}


@pytest.mark.parametrize("deed", FORBIDDEN)
def test_the_credentials_of_a_fleet_do_not(deed: str, mallory: Redis, admin: Redis) -> None:
    admin.acl_log_reset()
    with pytest.raises(ResponseError, match=r"(?i)permission"):
        FORBIDDEN[deed](mallory)
    assert len(refusals(admin)) == 1


@pytest.mark.parametrize("slug", ["", "Cards", "a b", "a*", "cards-", "a\n", "ä", "control"])
def test_a_name_that_no_fleet_has_is_refused(slug: str) -> None:
    with pytest.raises(InvalidInput):
        FleetUser(slug)
