"""schemathesis reads the document and tries to break the application with what it allows.

Random ids find nothing and random inputs fit no effect, so half of the calls are given those
of real things: what is found must fit its description too. Run on PostgreSQL, the stricter.
"""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import SkipTest
from uuid import UUID, uuid4

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from models import dead_letters, fleets
from models.users import Role
from tasks import catalog, registration
from tests.fixtures import FLEET_SECRET, Person, make_person
from tests.webapp.calls import (
    Caller,
    announce,
    answered,
    completed,
    has_endpoint,
    has_file,
    has_video,
    leased,
    new_effect,
    ordered,
)
from tests.webapp.conftest import prepared, running, served
from tests.webapp.gpus import Gpu, held, lease_of

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def bounded(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@dataclass(frozen=True)
class House:
    """The application, people in it, and the ids of what they own."""

    app: Flask
    user: Person
    admin: Person
    real: dict[str, list[Any]]


@pytest.fixture(scope="module")
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_redis_url: str
) -> Iterator[House]:
    ready = prepared(request, tmp_path_factory, module_redis_url, "postgres")
    with running(replace(ready, stream_seconds=0)) as app:  # nobody waits for a job to end
        backend = app.extensions["comfyfleet"]
        catalog.seed_demo(backend)
        with backend.databases.central() as session:
            fleets.put(session, stage="dev", slug="gpu-default", name="Demo", max_workers=10_000)
        user = make_person(backend, tokens=100_000)
        admin = make_person(backend, tokens=100_000, role=Role.ADMIN)
        real = belongings(app, user, admin) | playthings(app)
        yield House(app, user, admin, real)


def belongings(app: Flask, *people: Person) -> dict[str, list[Any]]:
    """Values that lead somewhere, by the name of the field they fit into."""
    names = (
        *("file_id", "video_id", "job_id", "user_id", "any_id", "letter_id"),
        *("endpoint_id", "delivery_id"),
    )
    ids: dict[str, list[Any]] = {name: [] for name in names}
    for person in people:
        owner = Caller(app, person)
        done = ordered(owner)["id"]
        completed(owner, done)
        ids["job_id"] += [done, ordered(owner)["id"]]
        ids["file_id"] += [str(has_file(owner)), announce(owner)["file"]["id"]]
        ids["video_id"] += [str(has_video(owner)), str(has_video(owner, "video"))]
        ids["user_id"].append(str(person.user_id))
        letter_id, dispatch_id = given_up(app, owner)
        ids["letter_id"].append(letter_id)
        ids["any_id"] += [done, dispatch_id, ordered(owner)["id"]]
        for _ in range(3):
            for name, value in has_endpoint(owner).items():
                ids[name].append(value)
    ids["id_or_slug"] = ids["effect_id"] = ["image-blur", "colour-card", "thumbnail"]
    ids["original_file_id"] = ids["file_id"]
    return ids | {"inputs": [{}], "url": ["https://hooks.example.com/"]}


def given_up(app: Flask, owner: Caller) -> tuple[str, str]:
    """A dead letter of theirs, and its dispatch."""
    gpu = Gpu(app, new_effect(owner.backend)).join()
    ordered(owner, gpu.fleet)
    lost = {"error": "404", "error_code": "provider_lost"}
    lease = lease_of(held(gpu))
    answered(gpu.call("fail", lease | lost))
    with owner.backend.databases.central(read_only=True) as session:
        letter = dead_letters.find_by_dispatch(session, UUID(lease["dispatch_id"]))
    assert letter is not None
    return str(letter.id), lease["dispatch_id"]


def playthings(app: Flask) -> dict[str, list[Any]]:
    """For administrators to switch off: an effect, its workflow, its fleet, and a worker there."""
    slug = new_effect(app.extensions["comfyfleet"])
    gpu = Gpu(app, slug).join()
    mapped = [[slug], [], [slug, "nowhere"]]
    return {"slug": [slug], "workflow": [slug], "workflows": mapped, "worker": [gpu.worker_id]}


@pytest.fixture(scope="module")
def schema(house: House) -> BaseSchema:
    return schemathesis.openapi.from_wsgi("/openapi.json", house.app)


ADMIN_TAGS = [
    *("admin", "admin-workflows", "admin-effects", "admin-fleets", "admin-workers"),
    *("admin-dispatches", "admin-dead-letters", "admin-audit", "admin-events", "admin-metrics"),
]
TAGS = [
    *("auth", "me", "effects", "uploads", "videos", "ai-jobs", "wallet", "worker"),
    "webhook-endpoints",
    *ADMIN_TAGS,
]


def try_to_break(
    schema: BaseSchema, tag: str, examples: int, call: Callable[[Case], object]
) -> None:
    """Every operation of a tag, with what the document allows and with what it forbids."""
    for found in schema.include(tag=tag).get_all_operations():
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            cases = operation.as_strategy(generation_mode=mode)
            try:
                bounded(examples)(given(cases)(call))()
            except (SkipTest, Unsatisfiable):
                # Nothing can be wrong about a call without parameters.
                assert mode == GenerationMode.NEGATIVE


def calling_as(person: Person, house: House) -> Callable[[Case], object]:
    def call(case: Case) -> None:
        luck = random.Random(repr((case.path_parameters, case.query, case.body)))
        if luck.random() < 0.5:
            case.headers.pop("Idempotency-Key", None)  # it would contradict the one in the body
        for place in (case.path_parameters, case.body):
            use_real_values(place, house.real, luck)
        case.call_and_validate(checks=CHECKS, headers=who(case).headers)

    def who(case: Case) -> Person:
        """Whoever signs out is somebody else the next time."""
        signs_out = case.path == "/api/auth/logout"
        return make_person(house.app.extensions["comfyfleet"]) if signs_out else person

    return call


def use_real_values(place: Any, real: dict[str, list[Any]], luck: random.Random) -> None:
    if isinstance(place, dict):
        for name in sorted(place.keys() & real.keys()):
            if luck.random() < 0.5:
                place[name] = luck.choice(real[name])


@pytest.mark.parametrize("tag", TAGS)
def test_a_user_breaks_nothing(schema: BaseSchema, house: House, tag: str) -> None:
    # Few tries at the door: each password that is long enough costs a hash.
    try_to_break(schema, tag, 5 if tag == "auth" else 25, calling_as(house.user, house))


@pytest.mark.parametrize("tag", ADMIN_TAGS)
def test_an_administrator_breaks_nothing(schema: BaseSchema, house: House, tag: str) -> None:
    try_to_break(schema, tag, 25, calling_as(house.admin, house))


def test_a_worker_breaks_nothing(schema: BaseSchema, house: House) -> None:
    worker = enlisted(house.app)

    def call(case: Case) -> None:
        luck = random.Random(repr(case.body))
        use_real_values(case.body, {"fleet_slug": ["gpu-default"], "stage": ["dev"]}, luck)
        headers = {"Authorization": f"Bearer {worker}"}
        if case.path == "/api/worker/register":
            headers = {"X-Fleet-Secret": FLEET_SECRET}
        elif case.path == "/api/worker/deregister":
            headers = {"Authorization": f"Bearer {enlisted(house.app)}"}
        elif luck.random() < 0.5:
            hold_a_job(case, house.app)
        case.call_and_validate(checks=CHECKS, headers=headers)

    try_to_break(schema, "worker", 15, call)


def enlisted(app: Flask) -> str:
    """The token of a new worker."""
    request = registration.Request(
        worker_id=f"w-{uuid4()}",
        fleet_slug="gpu-default",
        stage="dev",
        providers=["self_hosted"],
        capabilities={},
    )
    return registration.register(app.extensions["comfyfleet"], request, secret=FLEET_SECRET).token


def hold_a_job(case: Case, app: Flask) -> None:
    """A poll finds one that waits; a report speaks of one that is held."""
    backend = app.extensions["comfyfleet"]
    job = ordered(Caller(app, make_person(backend, tokens=100)))
    if isinstance(case.body, dict) and {"dispatch_id", "lease_token"} <= set(case.body):
        lease = leased(backend, job["id"])
        case.body |= {"dispatch_id": str(lease.dispatch_id), "lease_token": str(lease.token)}


def test_every_operation_has_one_of_these_tags(schema: BaseSchema) -> None:
    assert {tag for one in schema.get_all_operations() for tag in one.ok().tags} == set(TAGS)


def test_every_corner_of_the_document_over_real_http(house: House, tmp_path: Path) -> None:
    """The command line tool's tour of all limits, by somebody who may call everything."""
    with served(house.app) as address:
        run = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json",
                "--header", f"Authorization: Bearer {house.admin.token}",
                "--phases", "examples,coverage",
                "--checks", ",".join(check.__name__ for check in CHECKS),
                "--exclude-path", "/api/auth/logout", "--exclude-path", "/api/auth/register",
                "--exclude-path", "/api/auth/login", "--seed", "7", "--no-color",
            ],
            capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path,
        )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
