"""What the API does while a database or Redis is away, and when it is back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from redis import Redis
from sqlalchemy import make_url

from models.jobs import Job
from models.settings import Settings
from models.users import Role
from tasks import catalog
from tests.fixtures import emptied, for_tests, make_person
from tests.webapp.calls import Caller, MakeCaller, answered, new_effect, order, ordered, refused
from tests.webapp.conftest import running
from tests.webapp.gpus import Gpu, held, lease_of
from tests.webapp.test_problems import INSIDE
from tests.webapp.wires import Wire, dead_port, silent_port


class Wired:
    """The application, with a wire to each of its databases."""

    def __init__(self, settings: Settings) -> None:
        self.central, self.pool = self._wire(settings.central_url), self._wire(settings.central_url)
        self.settings = replace(
            settings,
            central_url=self._through(self.central, settings.central_url),
            pool_urls=" ".join(
                f"{name}={self._through(self.pool, url)}" for name, url in settings.pools.items()
            ),
        )

    def _wire(self, url: str) -> Wire:
        where = make_url(url)
        return Wire(where.host or "", where.port or 5432)

    def _through(self, wire: Wire, url: str) -> str:
        moved = make_url(url).set(host="127.0.0.1", port=wire.port)
        return moved.render_as_string(hide_password=False)


@pytest.fixture
def wired(
    postgres_settings: Settings, tmp_path: Any, module_redis_url: str
) -> Iterator[tuple[Wired, Caller]]:
    emptied(postgres_settings)
    wires = Wired(for_tests(postgres_settings, tmp_path, module_redis_url))
    with running(wires.settings) as app:
        backend = app.extensions["comfyfleet"]
        catalog.seed_demo(backend)
        yield wires, Caller(app, make_person(backend, tokens=100))
    for wire in (wires.central, wires.pool):
        wire.cut()


def away(answer: Any) -> None:
    problem = refused(answer, 503, "dependency_unavailable")
    assert int(answer.headers["Retry-After"]) == problem["retry_after_seconds"] > 0
    assert not INSIDE.search(answer.get_data(as_text=True))


def test_while_the_central_database_is_away_everything_waits(
    wired: tuple[Wired, Caller],
) -> None:
    wires, ada = wired
    ordered(ada)
    wires.central.cut()
    for _ in range(2):  # first on a connection that just broke, then on none
        away(ada.get("/api/me"))
        away(order(ada))
        away(ada.get("/api/effects"))
    answered(ada.get("/healthz"))
    ready = ada.get("/readyz")
    refused(ready, 503, "dependency_unavailable")
    assert ready.get_json()["checks"] == {
        "central": False, "pool:main": True, "pool:second": True, "redis": True,
    }  # fmt: skip

    wires.central.mend()
    answered(ada.get("/api/me"))
    ordered(ada)
    checks = {"central": True, "pool:main": True, "pool:second": True, "redis": True}
    assert answered(ada.get("/readyz")) == {"status": "ready", "checks": checks}


def test_while_a_pool_is_away_its_tenants_wait_and_lose_nothing(
    wired: tuple[Wired, Caller],
) -> None:
    wires, ada = wired
    first = ordered(ada, idempotency_key="first")
    wires.pool.cut()
    for _ in range(2):
        away(order(ada, idempotency_key="second"))
        away(ada.get("/api/wallet"))
        away(ada.get("/api/videos"))
    answered(ada.get("/api/me"))
    answered(ada.get("/api/effects"))

    wires.pool.mend()
    assert answered(order(ada, idempotency_key="first"), 200)["id"] == first["id"]
    ordered(ada, idempotency_key="second")
    assert ada.wallet() == {"balance": 98, "reserved": 2}


def test_while_a_pool_is_away_operators_see_what_central_knows(
    wired: tuple[Wired, Caller],
) -> None:
    wires, ada = wired
    admin = Caller(ada.app, make_person(ada.backend, role=Role.ADMIN))
    gpu = Gpu(ada.app, new_effect(ada.backend)).join()
    lost, waiting = ordered(ada, gpu.fleet), ordered(ada, gpu.fleet)
    said = {"error": "404", "error_code": "provider_lost"}
    answered(gpu.call("fail", lease_of(held(gpu)) | said))
    shown = answered(admin.get(f"/api/admin/dispatches/{waiting['id']}"))
    [letter] = answered(admin.get("/api/admin/dead-letters"))["items"]
    queue, redrive = (
        f"/api/admin/dispatches/{shown['id']}",
        f"/api/admin/dead-letters/{letter['id']}/redrive",
    )

    wires.pool.cut()
    assert answered(admin.get(queue)) == shown | {"job": None}
    answered(admin.post(f"{queue}/front"))
    assert len(answered(admin.get("/api/admin/dispatches"))["items"]) == 2
    away(admin.get(f"/api/admin/dispatches/{waiting['id']}"))  # whose job that is, the pool knows
    away(admin.post(f"{queue}/cancel"))
    away(admin.post(redrive))
    away(admin.get(f"/api/admin/wallets/{ada.person.user_id}"))

    wires.pool.mend()
    assert answered(admin.post(redrive))["job_id"] == lost["id"]
    assert ada.wallet() == {"balance": 98, "reserved": 2}


@contextmanager
def without_redis(app: Flask, port: int, **changed: Any) -> Iterator[Flask]:
    settings = app.extensions["comfyfleet"].settings
    with running(replace(settings, redis_url=f"redis://127.0.0.1:{port}/0", **changed)) as alone:
        yield alone


@pytest.mark.parametrize("kind", [dead_port, silent_port])
def test_without_redis_orders_are_taken_and_nobody_waits_long(
    plain_app: Flask, plain_caller: MakeCaller, kind: Any
) -> None:
    person = plain_caller(tokens=9).person
    with kind() as port, without_redis(plain_app, port) as app:
        ada = Caller(app, person)
        started = time.monotonic()
        jobs = [ordered(ada) for _ in range(3)]
        assert time.monotonic() - started < 5  # each alone would take longer, if it insisted
        assert {job["status"] for job in jobs} == {"queued"}
        checks = answered(ada.get("/readyz"))["checks"]
        assert checks == {"central": True, "pool:main": True, "pool:second": True, "redis": False}
        with ada.backend.databases.tenant(person.tenant_id) as session:
            assert session.query(Job).count() == 3


def test_without_redis_each_process_counts_requests_for_itself(
    plain_app: Flask, plain_caller: MakeCaller
) -> None:
    person = plain_caller().person
    limits = {
        "rate_limits": "auth=9/minute submit=9/minute upload=9/minute api=2/minute "
        "register=9/minute worker=9/minute"
    }
    with (
        dead_port() as port,
        without_redis(plain_app, port, **limits) as one,
        without_redis(plain_app, port, **limits) as other,
    ):
        for app in (one, other):
            ada = Caller(app, person)
            for _ in range(2):
                answered(ada.get("/api/me"))
            refused(ada.get("/api/me"), 429, "rate_limited")


def test_requests_are_counted_together_again_when_redis_is_back(
    plain_app: Flask, plain_caller: MakeCaller, module_redis_url: str
) -> None:
    person = plain_caller().person
    real = make_url(module_redis_url)
    wire = Wire(real.host or "", real.port or 6379)
    with without_redis(plain_app, wire.port) as app:
        limits = app.extensions["comfyfleet.rate_limits"]
        ada = Caller(app, person)
        wire.cut()
        answered(ada.get("/api/me"))
        assert limits.alone_until > time.monotonic()
        wire.mend()
        limits.alone_until = 0.0  # as after a few seconds
        answered(ada.get("/api/me"))
        assert limits.alone_until == 0.0
        with Redis.from_url(f"redis://127.0.0.1:{wire.port}/0") as redis:
            assert any(str(key) for key in redis.scan_iter("comfyfleet:limits*"))
        wire.cut()
