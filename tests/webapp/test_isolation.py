"""Nobody reaches what belongs to somebody else: every route of the application is tried.

The walk goes through the application's own map of routes. A route with an id in its address
is called with a stranger's id without anybody listing it here; any other route has to be put
into one of the lists below, or the walk fails and names it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask
from werkzeug.routing import Rule

from models.base import utcnow
from models.dispatches import Lease
from models.littered import FORGOTTEN
from models.users import AccessToken, Role, User, token_hash
from tasks import registration
from tasks.backend import Backend
from tests.fixtures import FLEET_SECRET, Person
from tests.webapp.calls import (
    NOBODY,
    Caller,
    Json,
    MakeCaller,
    announce,
    answered,
    completed,
    downloaded,
    every_row,
    has_endpoint,
    has_file,
    has_video,
    leased,
    new_effect,
    nothing_written,
    ordered,
    refused,
)

#: For everybody, or about nobody.
PUBLIC = {
    "POST /api/auth/register",
    "POST /api/auth/login",
    "POST /api/worker/register",
    "GET /api/effects",
    "GET /api/effects/<string:id_or_slug>",
    "GET /docs",
    "GET /docs/<path:name>",
    "GET /healthz",
    "GET /openapi.json",
    "GET /readyz",
    "GET /static/<path:filename>",
}
#: For machines nearby, or with a token of their own; nobody's sign-in opens them.
MACHINES = {"GET /metrics"}
#: About the caller, and with no way to name anybody else.
OWN = {
    "GET /api/me",
    "GET /api/wallet",
    "POST /api/auth/logout",
    "POST /api/videos/uploads",
    "POST /api/webhook-endpoints",
}
#: Show rows of the caller.
LISTS = {
    "GET /api/ai-jobs",
    "GET /api/videos",
    "GET /api/wallet/transactions",
    "GET /api/webhook-endpoints",
}
#: Belong to a tenant and not to one of its users: a colleague is no stranger there.
SHARED = "/api/webhook-endpoints"
#: For workers: a user's token opens none of them, whatever the body names.
WORKER = {
    f"POST /api/worker/{name}"
    for name in ("poll", "heartbeat", "complete", "fail", "requeue", "deregister")
}
#: Let in whoever holds a signature, and nobody else.
SIGNED = {"GET /storage/<path:key>", "PUT /storage/<path:key>"}


@dataclass(frozen=True)
class Belongings:
    """What the stranger owns: ids by the name they have in addresses, and all words of it."""

    ids: dict[str, str]
    words: set[str]
    keys: list[str]
    lease: Lease


def bodies(owned: Belongings) -> dict[str, list[Json]]:
    """Bodies that name a stranger's things, and those that an address with an id needs."""
    image = {"effect_id": "image-invert", "idempotency_key": uuid4().hex}
    return {
        "POST /api/videos": [{"original_file_id": owned.ids["file_id"]}],
        "POST /api/ai-jobs": [
            image | {"video_id": owned.ids["video_id"]},
            image | {"inputs": {"image": owned.ids["file_id"]}},
        ],
        "POST /api/videos/uploads/<uuid:file_id>/complete": [
            {"parts": [{"number": 1, "etag": "x"}]}
        ],
        "POST /api/admin/wallets/<uuid:user_id>/credit": [
            {"amount": 1, "provider_transaction_id": uuid4().hex}
        ],
        "POST /api/admin/jobs/<uuid:job_id>/refund": [{"note": "Mine now"}],
    }


def reports(lease: Lease) -> dict[str, Json]:
    """What a worker could say of the stranger's job."""
    proof = {"dispatch_id": str(lease.dispatch_id), "lease_token": str(lease.token)}
    made = {"name": "a.png", "mime_type": "image/png", "size_bytes": 1}
    return {
        "POST /api/worker/poll": {},
        "POST /api/worker/heartbeat": proof | {"progress": 0.5},
        "POST /api/worker/complete": proof | {"outputs": [made]},
        "POST /api/worker/fail": proof | {"error": "x"},
        "POST /api/worker/requeue": proof | {"reason": "x"},
        "POST /api/worker/deregister": {},
    }


def belongings(owner: Caller) -> Belongings:
    """One of everything, in the middle of its life."""
    file_id, video_id, pending = has_file(owner), has_video(owner), announce(owner)
    finished = ordered(owner, "image-invert", video_id=str(video_id))
    completed(owner, finished["id"])
    running = ordered(owner)
    lease = leased(owner.backend, running["id"])
    who = owner.person
    ids = {
        "file_id": str(file_id),
        "video_id": str(video_id),
        "job_id": running["id"],
        "user_id": str(who.user_id),
        **has_endpoint(owner),
    }
    keys = [f"tenants/{who.tenant_id}/files/{file_id}.png"]
    assert owner.backend.store.head(keys[0])
    words = {*ids.values(), finished["id"], pending["file"]["id"], str(who.tenant_id)}
    return Belongings(ids, words, keys, lease)


def colleague_of(owner: Caller) -> Caller:
    """Another user of the same tenant: walls between tenants are not enough."""
    token = uuid4().hex
    with owner.backend.databases.central() as session:
        user = User(
            tenant_id=owner.person.tenant_id,
            email=f"{token}@example.com",
            name="",
            password_hash="",
        )
        session.add(user)
        session.flush()
        session.add(
            AccessToken(user_id=user.id, token_hash=token_hash(token), expires_at=far_away())
        )
    return Caller(owner.app, Person(user.id, user.tenant_id, token, user.email))


def far_away() -> Any:
    return utcnow().replace(year=utcnow().year + 1)


@pytest.fixture(params=["the same pool", "another pool", "the same tenant"])
def strangers(request: pytest.FixtureRequest, caller: MakeCaller) -> tuple[Caller, Belongings]:
    """The caller, and what somebody else owns."""
    bob = caller(tokens=100)
    owned = belongings(bob)
    match request.param:
        case "the same pool":
            return caller(tokens=100), owned
        case "another pool":
            return caller(tokens=100, pool="second"), owned
        case _:
            return colleague_of(bob), owned


def routes(app: Flask) -> Iterator[tuple[str, str, Rule]]:
    for rule in app.url_map.iter_rules():
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            yield f"{method} {rule.rule}", method, rule


def address(app: Flask, rule: Rule, method: str, owned: Belongings) -> str:
    """Of this route, for the stranger's things; of what nobody owns any id will do."""
    ids = {name: owned.ids.get(name, NOBODY) for name in rule.arguments}
    return app.url_map.bind("localhost").build(rule.endpoint, ids, method)


@dataclass
class Walk:
    """Goes through every route as `caller`, naming what belongs to somebody else."""

    caller: Caller
    owned: Belongings
    wrong: dict[str, Any] = field(default_factory=dict)

    def everywhere(self) -> dict[str, Any]:
        for name, method, rule in routes(self.caller.app):
            self.one(name, method, rule)
        return self.wrong

    def one(self, name: str, method: str, rule: Rule) -> None:
        if name in PUBLIC | OWN or (self.is_colleague and rule.rule.startswith(SHARED)):
            return
        if name in LISTS:
            self.check_list(name, rule)
        elif name in MACHINES:
            self.check_ids(name, method, rule, 401)
        elif name in SIGNED:
            self.check_signed(name, method)
        elif name in WORKER:
            self.check_worker(name, method, rule)
        elif rule.rule.startswith("/api/admin/"):
            self.check_ids(name, method, rule, 403)  # before anything is looked at
        elif rule.arguments <= set(self.owned.ids) and (rule.arguments or self.bodies(name)):
            self.check_ids(name, method, rule, 404)
        else:
            self.wrong[name] = "This route is in no list. Who may reach what by it?"

    @property
    def is_colleague(self) -> bool:
        return str(self.caller.person.tenant_id) in self.owned.words

    def bodies(self, name: str) -> list[Json]:
        return bodies(self.owned).get(name, [])

    def check_ids(self, name: str, method: str, rule: Rule, expected: int) -> None:
        url = address(self.caller.app, rule, method, self.owned)
        for body in self.bodies(name) or [None]:
            answer = self.caller.call(method, url, json=body)
            if answer.status_code != expected or self.leaks(answer.get_data(as_text=True)):
                self.wrong[name] = (answer.status_code, answer.get_data(as_text=True))

    def check_list(self, name: str, rule: Rule) -> None:
        answer = self.caller.get(f"{rule.rule}?limit=200")
        if answer.status_code != 200 or self.leaks(answer.get_data(as_text=True)):
            self.wrong[name] = (answer.status_code, answer.get_data(as_text=True))

    def check_signed(self, name: str, method: str) -> None:
        """Neither without a signature, nor with that of an address of one's own."""
        mine = announce(self.caller)["upload"]["url"].partition("?")[2]
        for key in self.owned.keys:
            for query in ("", mine):
                answer = self.caller.call(method, f"/storage/{key}?{query}", data=b"x")
                if answer.status_code != 403:
                    self.wrong[name] = answer.status_code

    def check_worker(self, name: str, method: str, rule: Rule) -> None:
        answer = self.caller.call(method, rule.rule, json=reports(self.owned.lease)[name])
        if answer.status_code != 401:
            self.wrong[name] = (answer.status_code, answer.get_data(as_text=True))

    def leaks(self, text: str) -> bool:
        mine = {str(self.caller.person.tenant_id)}
        return any(word in text for word in self.owned.words - mine)


def test_every_route_keeps_strangers_out(strangers: tuple[Caller, Belongings]) -> None:
    caller, owned = strangers
    before = every_row(caller.backend)
    assert Walk(caller, owned).everywhere() == {}
    after = every_row(caller.backend)
    pool = caller.backend.databases.pool_of(caller.person.tenant_id)
    before.pop(f"{pool}.files")  # the walk announces files of its own
    after.pop(f"{pool}.files")
    assert after == before


def test_a_route_that_nobody_thought_of_is_found(
    plain_app_with: Any, plain_caller: MakeCaller
) -> None:
    app = plain_app_with()
    careless = ["/api/videos/all", "/api/teams/<uuid:team_id>", "/api/videos/<uuid:video_id>/x"]
    for address in careless:
        app.add_url_rule(address, endpoint=address.replace(".", ""), view_func=lambda **_: [])
    bob = plain_caller(tokens=100)
    walk = Walk(Caller(app, plain_caller().person), belongings(bob))
    assert set(walk.everywhere()) == {f"GET {address}" for address in careless}


def test_the_lists_name_no_route_that_is_gone(app: Flask) -> None:
    known = {name for name, _, _ in routes(app)}
    listed = PUBLIC | OWN | LISTS | SIGNED | WORKER
    assert listed - known == set()
    nobodys = Lease(uuid4(), uuid4())
    nothing = Belongings(dict.fromkeys(["file_id", "video_id"], "x"), set(), [], nobodys)
    assert set(bodies(nothing)) <= known
    assert set(reports(nobodys)) == WORKER


def test_without_signing_in_every_private_route_is_closed(app: Flask, caller: MakeCaller) -> None:
    owned = belongings(caller(tokens=100))
    client = app.test_client()
    with nothing_written(app.extensions["comfyfleet"]):
        for name, method, rule in routes(app):
            if name in PUBLIC | SIGNED | MACHINES:
                continue
            url = address(app, rule, method, owned)
            refused(client.open(url, method=method, json={}), 401, "unauthorized")


@pytest.mark.parametrize("whose", ["its own fleet", "another fleet"])
def test_a_worker_has_no_word_on_a_lease_of_somebody_else(
    app: Flask, caller: MakeCaller, whose: str
) -> None:
    """With the id of the dispatch alone; of another fleet, not even with its lease token."""
    owned = belongings(caller(tokens=100))
    backend = app.extensions["comfyfleet"]
    if whose == "its own fleet":
        token, lease = worker_token(backend, "gpu-default"), replace(owned.lease, token=uuid4())
    else:
        token, lease = worker_token(backend, new_effect(backend)), owned.lease
    client = app.test_client()
    before = all_but_notes(backend)
    for name, report in reports(lease).items():
        if "dispatch_id" in report:
            address = name.removeprefix("POST ")
            headers = {"Authorization": f"Bearer {token}"}
            refused(client.post(address, json=report, headers=headers), 409, "lease_lost")
    assert all_but_notes(backend) == before


def all_but_notes(backend: Backend) -> dict[str, list[Any]]:
    """That somebody spoke of a lease which is not known is noted, for the sweep of leftovers."""
    rows = every_row(backend)
    told = [row.replace(repr(FORGOTTEN), "None") for row in rows["ai_job_dispatches"]]
    return rows | {"ai_job_dispatches": sorted(told)}


def worker_token(backend: Backend, fleet_slug: str) -> str:
    request = registration.Request(
        worker_id=f"w-{uuid4()}",
        fleet_slug=fleet_slug,
        stage=backend.settings.stage,
        providers=["self_hosted"],
        capabilities={},
    )
    return registration.register(backend, request, secret=FLEET_SECRET).token


def test_an_administrator_is_a_stranger_too(caller: MakeCaller) -> None:
    """The role opens /api/admin; it shows nobody's media by the addresses of users."""
    bob, admin = caller(tokens=100), caller(role=Role.ADMIN)
    owned = belongings(bob)
    for kind in ("videos", "ai-jobs"):
        name = {"videos": "video_id", "ai-jobs": "job_id"}[kind]
        refused(admin.get(f"/api/{kind}/{owned.ids[name]}"), 404, "not_found")
        assert answered(admin.get(f"/api/{kind}"))["items"] == []


def test_the_owner_gets_in_by_the_same_addresses(caller: MakeCaller) -> None:
    """Or else all those refusals would prove nothing."""
    bob = caller(tokens=100)
    owned = belongings(bob)
    answered(bob.get(f"/api/ai-jobs/{owned.ids['job_id']}"))
    video = answered(bob.get(f"/api/videos/{owned.ids['video_id']}"))
    assert downloaded(bob, video["original_file_url"])
    new = {"original_file_id": owned.ids["file_id"]}
    answered(bob.post("/api/videos", json=new), 201)
    image = {"effect_id": "image-invert", "video_id": owned.ids["video_id"]}
    answered(bob.post("/api/ai-jobs", json=image | {"idempotency_key": "k"}), 201)
