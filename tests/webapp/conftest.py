"""The real application on both databases, once for a module.

A test brings its own people, and an effect of its own where it switches one off, so tests
share the tables without meeting. `plain_*` is for what no database has a say in.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from redis import Redis
from werkzeug.serving import WSGIRequestHandler, make_server

from models.settings import Settings
from tasks import catalog, figures
from tasks.backend import Backend
from tests.fixtures import MakePerson, emptied, for_tests, make_person, sqlite_settings
from tests.webapp.calls import Caller, new_effect
from tests.webapp.gpus import Gpu
from webapp import create_app


@pytest.fixture(autouse=True)
def patience_with_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine reading them may take longer than anybody would wait otherwise."""
    monkeypatch.setattr(figures, "WAIT_SECONDS", 60.0)


@pytest.fixture(scope="module")
def module_redis_url(place: int) -> str:
    url = os.environ["TEST_REDIS_URL"].rsplit("/", 1)[0] + f"/{place}"
    with Redis.from_url(url) as redis:
        redis.flushdb()
    return url


def prepared(
    request: pytest.FixtureRequest, factory: pytest.TempPathFactory, redis_url: str, kind: str
) -> Settings:
    """Settings of databases that are migrated and empty."""
    folder = factory.mktemp(kind)
    if kind == "postgres":
        settings: Settings = request.getfixturevalue("postgres_settings")
        emptied(settings)
    else:
        shutil.copytree(request.getfixturevalue("sqlite_template"), folder / "databases")
        settings = sqlite_settings(folder / "databases")
    return for_tests(settings, folder, redis_url)


@contextmanager
def running(settings: Settings) -> Iterator[Flask]:
    app = create_app(settings)
    yield app
    app.extensions["comfyfleet"].close()


@contextmanager
def served(app: Flask, port: int = 0) -> Iterator[str]:
    """The application behind a real HTTP server; yields its address."""
    server = make_server("127.0.0.1", port, app, threaded=True, request_handler=QuietHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class QuietHandler(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        """Thousands of lines that nobody reads."""


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def app(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_redis_url: str
) -> Iterator[Flask]:
    """The application with the demo catalog, on each database."""
    with running(prepared(request, tmp_path_factory, module_redis_url, request.param)) as app:
        catalog.seed_demo(app.extensions["comfyfleet"])
        yield app


@pytest.fixture(scope="module")
def plain_app(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_redis_url: str
) -> Iterator[Flask]:
    """The application with the demo catalog, on SQLite only."""
    with running(prepared(request, tmp_path_factory, module_redis_url, "sqlite")) as app:
        catalog.seed_demo(app.extensions["comfyfleet"])
        yield app


@pytest.fixture
def backend(app: Flask) -> Backend:
    made: Backend = app.extensions["comfyfleet"]
    return made


@pytest.fixture
def plain_backend(plain_app: Flask) -> Backend:
    made: Backend = plain_app.extensions["comfyfleet"]
    return made


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def plain_client(plain_app: Flask) -> FlaskClient:
    return plain_app.test_client()


@pytest.fixture
def person(backend: Backend) -> MakePerson:
    return lambda **given: make_person(backend, **given)


@pytest.fixture
def caller(app: Flask, person: MakePerson) -> Callable[..., Caller]:
    """Somebody new who is signed in: `caller(tokens=100)`."""
    return lambda **given: Caller(app, person(**given))


@pytest.fixture
def plain_caller(plain_app: Flask, plain_backend: Backend) -> Callable[..., Caller]:
    return lambda **given: Caller(plain_app, make_person(plain_backend, **given))


AppWith = Callable[..., Flask]


@pytest.fixture
def plain_app_with(plain_app: Flask) -> Iterator[AppWith]:
    """Another application on the same databases, with some settings changed."""
    made: list[Flask] = []

    def make(**changed: Any) -> Flask:
        settings = replace(plain_app.extensions["comfyfleet"].settings, **changed)
        made.append(create_app(settings))
        return made[-1]

    yield make
    for app in made:
        app.extensions["comfyfleet"].close()


@pytest.fixture
def effect(backend: Backend) -> str:
    """An effect, workflow and fleet that no other test touches; all have this name."""
    return new_effect(backend, cost=3)


@pytest.fixture
def gpu(app: Flask, effect: str) -> Gpu:
    return Gpu(app, effect).join()


@pytest.fixture
def ada(caller: Callable[..., Caller]) -> Caller:
    return caller(tokens=100)
