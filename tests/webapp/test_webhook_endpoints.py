"""Endpoints as their owners see them: made, changed, tried, replayed and removed by the API."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from models.audit import AuditLog
from models.webhooks import WebhookDelivery, WebhookEndpoint
from tasks import webhook_courier
from tasks.backend import Backend
from tests.tasks.receivers import Receiver, receiver, sending
from tests.webapp.calls import (
    NOBODY,
    Caller,
    Json,
    MakeCaller,
    answered,
    completed,
    is_utc,
    nothing_written,
    ordered,
    refused,
)
from tests.webapp.test_isolation import colleague_of

BASE = "/api/webhook-endpoints"
URL = "https://hooks.example.com/comfyfleet"
EVERYTHING = ["job.completed", "job.failed", "job.cancelled", "wallet.low"]


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def ada(caller: MakeCaller) -> Caller:
    return caller(tokens=100)


def make(caller: Caller, url: str = URL, events: list[str] | None = None) -> Json:
    return answered(caller.post(BASE, json={"url": url, "events": events or EVERYTHING}), 201)


def at(made: Json, more: str = "") -> str:
    return f"{BASE}/{made['id']}{more}"


def send(backend: Backend) -> None:
    with sending(backend) as house:
        webhook_courier.send_all_due(house)


def leads_to(backend: Backend, made: Json, url: str) -> None:
    """What the API would refuse in earnest: a receiver on this machine."""
    with backend.databases.central() as session:
        session.query(WebhookEndpoint).filter_by(id=made_id(made)).update({"url": url})


def made_id(made: Json) -> UUID:
    return UUID(made["id"])


def test_an_endpoint_is_made_and_its_secret_shown_once(ada: Caller) -> None:
    made = make(ada, events=["wallet.low", "job.failed", "job.failed"])
    assert made["secret"].startswith("whsec_")
    assert made["url"] == URL
    assert made["events"] == ["job.failed", "wallet.low"]
    assert made["is_active"] is True
    assert is_utc(made["created_at"])
    shown = answered(ada.get(at(made)))
    assert "secret" not in shown
    assert shown == {name: value for name, value in made.items() if name != "secret"}
    assert answered(ada.get(BASE)) == {"items": [shown], "next_cursor": None}
    assert make(ada)["secret"] != made["secret"]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://hooks.example.com/", "Only https"),
        ("https://127.0.0.1/", "not a public one"),
        ("https://2130706433/", "not a public one"),
        ("https://0x7f.1/", "not a public one"),
        ("https://[::ffff:127.0.0.1]/", "not a public one"),
        ("https://169.254.169.254/latest/meta-data", "not a public one"),
        ("https://ada:secret@example.com/", "Without user"),
        ("https://example.com:6379/", ""),
        ("https://example.com:25/", "port"),
        ("https://example.com/" + "a" * 2000, "2000"),
        ("nonsense", "https://"),
    ],
)
def test_an_address_that_leads_nowhere_good_is_refused(ada: Caller, url: str, told: str) -> None:
    answer = ada.post(BASE, json={"url": url, "events": EVERYTHING})
    if not told:
        answered(answer, 201)
        return
    body = refused(answer, 422, "invalid_input", "url")
    assert told in body["errors"]["url"][0]
    made = make(ada)
    refused(ada.call("PATCH", at(made), json={"url": url}), 422, "invalid_input", "url")


@pytest.mark.parametrize(
    "events", [[], ["job.started"], ["*"], "job.failed", [None], [["job.failed"]], None]
)
def test_only_events_that_exist_can_be_listened_to(ada: Caller, events: Any) -> None:
    with nothing_written(ada.backend):
        refused(ada.post(BASE, json={"url": URL, "events": events}), 422, "invalid_input")


def test_a_tenant_has_so_many_endpoints_and_no_more(ada: Caller, caller: MakeCaller) -> None:
    most = ada.backend.settings.webhook_max_endpoints
    with ThreadPoolExecutor(4) as threads:
        body = {"url": URL, "events": EVERYTHING}
        said = list(threads.map(lambda _: ada.post(BASE, json=body).status_code, range(most + 4)))
    assert sorted(said) == [201] * most + [409] * 4
    refused(ada.post(BASE, json=body), 409, "not_possible_now")
    make(caller())
    page = answered(ada.get(f"{BASE}?limit=3"))
    ids = [one["id"] for one in page["items"]]
    while page["next_cursor"]:
        page = answered(ada.get(f"{BASE}?limit=3&cursor={page['next_cursor']}"))
        ids += [one["id"] for one in page["items"]]
    assert len(set(ids)) == len(ids) == most
    assert ada.delete(f"{BASE}/{ids[0]}").status_code == 204
    make(ada)


def test_it_can_be_changed_switched_off_and_on(ada: Caller) -> None:
    made = make(ada)
    other = "https://other.example.com/"
    changed = answered(ada.call("PATCH", at(made), json={"url": other, "events": ["job.failed"]}))
    assert (changed["url"], changed["events"]) == (other, ["job.failed"])
    assert answered(ada.call("PATCH", at(made), json={"is_active": False}))["is_active"] is False
    assert answered(ada.call("PATCH", at(made), json={}))["is_active"] is False
    with ada.backend.databases.central() as session:
        off = session.get_one(WebhookEndpoint, made_id(made))
        off.disabled_reason, off.failing_since = "Every try failed.", off.created_at
    shown = answered(ada.get(at(made)))
    assert shown["disabled_reason"] == "Every try failed."
    assert is_utc(shown["failing_since"])
    on = answered(ada.call("PATCH", at(made), json={"is_active": True}))
    assert (on["is_active"], on["disabled_reason"], on["failing_since"]) == (True, None, None)


@pytest.mark.parametrize("wrong", [{"is_active": "yes"}, {"is_active": None}, {"secret": "x"}])
def test_a_change_that_makes_no_sense_is_refused(ada: Caller, wrong: Json) -> None:
    made = make(ada)
    with nothing_written(ada.backend):
        refused(ada.call("PATCH", at(made), json=wrong), 422, "invalid_input")


def test_every_change_is_in_the_audit_log_without_secrets(ada: Caller) -> None:
    made = make(ada)
    ada.call("PATCH", at(made), json={"is_active": False})
    rotated = answered(ada.post(at(made, "/rotate-secret")))
    ada.delete(at(made))
    with ada.backend.databases.central(read_only=True) as session:
        rows = session.query(AuditLog).filter_by(tenant_id=ada.person.tenant_id).all()
    events = sorted(row.event for row in rows if row.event.startswith("webhook."))
    assert events == ["webhook.change", "webhook.create", "webhook.remove", "webhook.rotate"]
    assert {row.actor for row in rows} == {f"user:{ada.person.user_id}"}
    told = repr([row.details for row in rows])
    assert made["secret"] not in told
    assert rotated["secret"] not in told
    assert made["id"] in told


def test_a_secret_is_replaced_without_a_gap(ada: Caller, hook: Receiver) -> None:
    made = make(ada)
    leads_to(ada.backend, made, hook.url)
    second = answered(ada.post(at(made, "/rotate-secret")))
    assert second["secret"] != made["secret"]
    assert is_utc(second["previous_secret_until"])
    assert "secret" not in answered(ada.get(at(made)))
    answered(ada.post(at(made, "/test")), 201)
    send(ada.backend)
    [got] = hook.received
    assert got.verified(made["secret"]) == got.verified(second["secret"])
    third = answered(ada.post(at(made, "/rotate-secret")))
    answered(ada.post(at(made, "/test")), 201)
    send(ada.backend)
    [_, got] = hook.received
    assert got.verified(second["secret"]) == got.verified(third["secret"])
    with pytest.raises(Exception, match="No matching signature"):
        got.verified(made["secret"])
    with ada.backend.databases.central() as session:  # the overlap has passed
        row = session.get_one(WebhookEndpoint, made_id(made))
        row.previous_secret_until = row.created_at
    answered(ada.post(at(made, "/test")), 201)
    send(ada.backend)
    got = hook.received[-1]
    assert len(got.headers["webhook-signature"].split()) == 1
    assert got.verified(third["secret"])["type"] == "endpoint.test"


def test_a_job_that_ends_is_told_and_the_delivery_shows_every_try(
    ada: Caller, hook: Receiver
) -> None:
    made = make(ada, events=["job.completed"])
    leads_to(ada.backend, made, hook.url)
    job = ordered(ada)
    completed(ada, job["id"])
    [waiting] = answered(ada.get(at(made, "/deliveries")))["items"]
    assert (waiting["status"], waiting["attempts"], waiting["log"]) == ("pending", 0, [])
    assert is_utc(waiting["next_attempt_at"])
    hook.status = 503
    send(ada.backend)
    [tried] = answered(ada.get(at(made, "/deliveries?status=pending")))["items"]
    assert (tried["attempts"], tried["response_status"]) == (1, 503)
    assert tried["error"] == "The receiver answered 503."
    [entry] = tried["log"]
    assert entry["status"] == 503
    assert is_utc(entry["at"])
    [got] = hook.received
    told = got.verified(made["secret"])
    assert told == tried["payload"]
    assert told["data"]["job_id"] == job["id"]
    assert "http" not in got.body.decode()  # no address of any file
    assert answered(ada.get(f"/api/ai-jobs/{told['data']['job_id']}"))["status"] == "completed"
    assert got.message_id == tried["message_id"]


def test_a_message_is_replayed_under_its_old_id(ada: Caller, hook: Receiver) -> None:
    made = make(ada)
    leads_to(ada.backend, made, hook.url)
    job = ordered(ada)
    answered(ada.post(f"/api/ai-jobs/{job['id']}/cancel"))
    send(ada.backend)
    [first] = answered(ada.get(at(made, "/deliveries")))["items"]
    again = answered(ada.post(at(made, f"/deliveries/{first['id']}/replay")), 201)
    assert again["id"] != first["id"]
    assert again["message_id"] == first["message_id"]
    assert (again["payload"], again["status"]) == (first["payload"], "pending")
    # While that one waits there is nothing to add: it is due now.
    once_more = answered(ada.post(at(made, f"/deliveries/{first['id']}/replay")), 200)
    assert once_more["id"] == again["id"]
    send(ada.backend)
    assert hook.ids == [first["message_id"]] * 2
    assert hook.received[0].body == hook.received[1].body
    third = answered(ada.post(at(made, f"/deliveries/{again['id']}/replay")), 201)
    assert third["message_id"] == first["message_id"]


def test_what_waits_for_its_next_try_can_be_hurried(ada: Caller, hook: Receiver) -> None:
    made = make(ada)
    leads_to(ada.backend, made, hook.url)
    answered(ada.post(at(made, "/test")), 201)
    hook.status = 500
    send(ada.backend)
    send(ada.backend)
    assert len(hook.received) == 1
    hook.status = 200
    [waiting] = answered(ada.get(at(made, "/deliveries")))["items"]
    answered(ada.post(at(made, f"/deliveries/{waiting['id']}/replay")), 200)
    send(ada.backend)
    [done] = answered(ada.get(at(made, "/deliveries?status=delivered")))["items"]
    assert (done["id"], done["attempts"]) == (waiting["id"], 2)
    assert done["next_attempt_at"] is None
    assert is_utc(done["delivered_at"])


def test_tests_do_not_pile_up(ada: Caller) -> None:
    made = make(ada)
    first = answered(ada.post(at(made, "/test")), 201)
    assert answered(ada.post(at(made, "/test")), 200)["id"] == first["id"]
    assert first["event"] == first["payload"]["type"] == "endpoint.test"
    assert first["payload"]["data"] == {"endpoint_id": made["id"]}


def test_an_endpoint_that_is_off_sends_nothing_by_hand_either(ada: Caller) -> None:
    made = make(ada)
    first = answered(ada.post(at(made, "/test")), 201)
    ada.call("PATCH", at(made), json={"is_active": False})
    with nothing_written(ada.backend):
        for call in ("/test", f"/deliveries/{first['id']}/replay"):
            refused(ada.post(at(made, call)), 409, "not_possible_now")


def test_deliveries_come_in_pages(ada: Caller) -> None:
    made, other = make(ada), make(ada, events=["wallet.low"])
    for _ in range(5):
        job = ordered(ada)
        answered(ada.post(f"/api/ai-jobs/{job['id']}/cancel"))
    page = answered(ada.get(at(made, "/deliveries?limit=2")))
    found = page["items"]
    cursor = page["next_cursor"]
    refused(ada.get(at(other, f"/deliveries?cursor={cursor}")), 422, "invalid_cursor")
    refused(ada.get(at(made, f"/deliveries?status=failed&cursor={cursor}")), 422, "invalid_cursor")
    while cursor:
        page = answered(ada.get(at(made, f"/deliveries?limit=2&cursor={cursor}")))
        found, cursor = found + page["items"], page["next_cursor"]
    assert len({one["id"] for one in found}) == len(found) == 5
    assert [one["created_at"] for one in found] == sorted(
        (one["created_at"] for one in found), reverse=True
    )
    assert answered(ada.get(at(other, "/deliveries")))["items"] == []


def test_an_endpoint_is_removed_with_all_it_was_told(ada: Caller) -> None:
    made, kept = make(ada), make(ada)
    answered(ada.post(at(made, "/test")), 201)
    answered(ada.post(at(kept, "/test")), 201)
    assert ada.delete(at(made)).status_code == 204
    refused(ada.get(at(made)), 404, "not_found")
    refused(ada.delete(at(made)), 404, "not_found")
    with ada.backend.databases.central(read_only=True) as session:
        owners = {row.endpoint_id for row in session.query(WebhookDelivery)}
    assert made_id(made) not in owners
    assert made_id(kept) in owners


@pytest.mark.parametrize(
    ("method", "more", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", {"is_active": False}),
        ("DELETE", "", None),
        ("POST", "/rotate-secret", None),
        ("POST", "/test", None),
        ("GET", "/deliveries", None),
        ("POST", "/deliveries/{delivery}/replay", None),
    ],
)
def test_what_is_not_yours_does_not_exist(
    ada: Caller, caller: MakeCaller, method: str, more: str, body: Json | None
) -> None:
    made = make(ada)
    sent = answered(ada.post(at(made, "/test")), 201)
    bob = caller()
    with nothing_written(ada.backend):
        for who, path in ((bob, at(made, more)), (ada, f"{BASE}/{NOBODY}{more}")):
            address = path.format(delivery=sent["id"])
            refused(who.call(method, address, json=body), 404, "not_found")
    mine = make(bob)
    with nothing_written(ada.backend):
        replay = at(mine, f"/deliveries/{sent['id']}/replay")
        refused(bob.post(replay), 404, "not_found")


def test_colleagues_share_their_tenants_endpoints(ada: Caller) -> None:
    made = make(ada)
    assert answered(colleague_of(ada).get(at(made)))["id"] == made["id"]


def test_replays_at_the_same_moment_are_one(ada: Caller, hook: Receiver) -> None:
    made = make(ada)
    leads_to(ada.backend, made, hook.url)
    first = answered(ada.post(at(made, "/test")), 201)
    send(ada.backend)
    again = at(made, f"/deliveries/{first['id']}/replay")
    with ThreadPoolExecutor(6) as threads:
        said = list(threads.map(lambda _: ada.post(again).status_code, range(6)))
    assert sorted(said) == [200] * 5 + [201]
    assert len(answered(ada.get(at(made, "/deliveries")))["items"]) == 2


def test_replays_changes_and_failing_tries_at_once_come_to_an_end(
    ada: Caller, hook: Receiver
) -> None:
    """All of them want the endpoint and its deliveries, and take them in one order."""
    made = make(ada)
    leads_to(ada.backend, made, hook.url)
    for _ in range(5):
        answered(ada.post(f"/api/ai-jobs/{ordered(ada)['id']}/cancel"))
    hook.status = 500
    replays = [
        at(made, f"/deliveries/{one['id']}/replay")
        for one in answered(ada.get(at(made, "/deliveries")))["items"]
    ]

    def hurry(number: int) -> int:
        if number % 4 == 0:
            return ada.call("PATCH", at(made), json={"is_active": True}).status_code
        return ada.post(replays[number % 5]).status_code

    with ThreadPoolExecutor(5) as threads:
        sending_all = [threads.submit(send, ada.backend) for _ in range(2)]
        said = set(threads.map(hurry, range(24)))
        for one in sending_all:
            one.result(60)
    assert said == {200}
