"""Effects as administrators make and change them, and what users see of that."""

from typing import Any
from uuid import uuid4

import pytest

from models import ledger_audit
from models.users import Role
from tests.webapp.calls import (
    NOBODY,
    Caller,
    Json,
    MakeCaller,
    answered,
    completed,
    failed,
    has_video,
    nothing_written,
    order,
    ordered,
    refused,
)
from tests.webapp.test_admin_workflows import events

ADDRESS = "/api/admin/effects"


@pytest.fixture
def admin(caller: MakeCaller) -> Caller:
    return caller(role=Role.ADMIN)


def body(**given: Any) -> Json:
    usual = {"slug": f"e-{uuid4().hex[:12]}", "name": "Small", "workflow": "image-scale"}
    return usual | {"credits_cost": 4, "overrides": {"width": 64, "crop": "center"}} | given


def changed(admin: Caller, slug: str, **given: Any) -> Any:
    return admin.call("PATCH", f"{ADDRESS}/{slug}", json=given)


def test_an_effect_is_made_shown_and_can_be_ordered(admin: Caller, caller: MakeCaller) -> None:
    new = body()
    made = answered(admin.post(ADDRESS, json=new), 201)
    assert {name: made[name] for name in new} == new
    assert (made["kind"], made["needs_media"], made["description"]) == ("image", True, "")
    assert (made["provider"], made["is_active"], made["problem"]) == ("self_hosted", True, None)
    assert [one["name"] for one in made["inputs"]] == ["image", "height", "method"]
    assert answered(admin.get(f"{ADDRESS}/{new['slug']}")) == made
    assert answered(admin.get(f"{ADDRESS}/{made['id']}")) == made
    assert made in answered(admin.get(f"{ADDRESS}?limit=200"))["items"]

    ada = caller(tokens=10)
    assert answered(ada.get(f"/api/effects/{new['slug']}"))["credits_cost"] == 4
    ordered(ada, new["slug"], video_id=str(has_video(ada)))
    assert ada.wallet() == {"balance": 6, "reserved": 4}
    [(event, told)] = events(admin)
    assert (event, told["effect"], told["credits_cost"]) == ("effect.create", new["slug"], 4)


def test_an_effect_may_cost_nothing(admin: Caller, caller: MakeCaller) -> None:
    new, ada = body(credits_cost=0), caller()
    answered(admin.post(ADDRESS, json=new), 201)
    first, second = (ordered(ada, new["slug"], video_id=str(has_video(ada))) for _ in range(2))
    completed(ada, first["id"])
    failed(ada, second["id"])
    assert answered(ada.get(f"/api/ai-jobs/{second['id']}"))["refunded"] is True
    assert ada.wallet() == {"balance": 0, "reserved": 0}
    with admin.backend.databases.tenant(ada.person.tenant_id) as session:
        assert list(ledger_audit.disagreements(session)) == []


def test_a_name_is_given_once(admin: Caller) -> None:
    new = body()
    answered(admin.post(ADDRESS, json=new), 201)
    with nothing_written(admin.backend):
        refused(admin.post(ADDRESS, json=new), 409, "slug_taken", "slug")


def test_an_effect_is_changed_field_by_field(admin: Caller, caller: MakeCaller) -> None:
    new = body()
    answered(admin.post(ADDRESS, json=new), 201)
    ada = caller(tokens=100)
    earlier = ordered(ada, new["slug"], video_id=str(has_video(ada)))
    after = answered(changed(admin, new["slug"], credits_cost=9, description="Tiny."))
    assert (after["credits_cost"], after["description"], after["name"]) == (9, "Tiny.", "Small")
    later = ordered(ada, new["slug"], video_id=str(has_video(ada)))
    assert (earlier["price_tokens"], later["price_tokens"]) == (4, 9)
    told = {"credits_cost": [4, 9], "description": ["", "Tiny."]}
    assert events(admin)[1:] == [("effect.change", {"effect": new["slug"], "changed": told})]
    with nothing_written(admin.backend):
        answered(changed(admin, new["slug"], credits_cost=9))
        answered(changed(admin, new["slug"]))


def test_switched_off_it_is_gone_for_users_and_back_when_switched_on(
    admin: Caller, caller: MakeCaller
) -> None:
    new, ada = body(), caller(tokens=10)
    answered(admin.post(ADDRESS, json=new), 201)
    video = str(has_video(ada))
    off = answered(changed(admin, new["slug"], is_active=False))
    assert off["problem"] == "It is switched off."
    refused(ada.get(f"/api/effects/{new['slug']}"), 404, "not_found")
    refused(order(ada, new["slug"], video_id=video), 422, "effect_unavailable")
    assert answered(changed(admin, new["slug"], is_active=True))["problem"] is None
    ordered(ada, new["slug"], video_id=video)


def test_another_workflow_needs_overrides_that_fit_it(admin: Caller) -> None:
    new = body()
    answered(admin.post(ADDRESS, json=new), 201)
    with nothing_written(admin.backend):
        answer = changed(admin, new["slug"], workflow="image-blur")
        refused(answer, 422, "invalid_input", "overrides.width")
    given = {"workflow": "image-blur", "overrides": {"radius": 3}}
    after = answered(changed(admin, new["slug"], **given))
    assert (after["workflow"], after["overrides"]) == ("image-blur", {"radius": 3})
    [_, (_, told)] = events(admin)
    assert told["changed"]["workflow"] == ["image-scale", "image-blur"]


def test_why_nobody_can_order_an_effect_is_told(admin: Caller) -> None:
    slug = f"w-{uuid4().hex[:12]}"
    upload = {"slug": slug, "name": "W", "kind": "image", "output_node_id": "1"}
    upload["graph"] = {"1": {"class_type": "EmptyImage", "inputs": {"width": "{{width}}"}}}
    upload["properties"] = [{"name": "width", "type": "integer", "default": 8, "max": 100}]
    answered(admin.post("/api/admin/workflows", json=upload), 201)
    new = body(workflow=slug, overrides={"width": 90})
    assert "No fleet runs" in answered(admin.post(ADDRESS, json=new), 201)["problem"]

    fleet = f"f-{uuid4().hex[:12]}"
    answered(admin.post("/api/admin/fleets", json={"slug": fleet}), 201)
    mapping = {"workflows": [slug]}
    answered(admin.call("PUT", f"/api/admin/fleets/{fleet}/workflows", json=mapping))
    assert problem(admin, new) is None
    admin.call("PATCH", f"/api/admin/fleets/{fleet}", json={"is_active": False})
    assert problem(admin, new) == f"Its fleet '{fleet}' is switched off."
    admin.call("PATCH", f"/api/admin/fleets/{fleet}", json={"is_active": True})

    upload["properties"][0]["max"] = 50
    shown = answered(admin.post("/api/admin/workflows", json=upload), 201)
    told = "It no longer fits its workflow. overrides.width: Must be at most 50."
    assert (shown["effects"], shown["problems"]) == ([new["slug"]], {new["slug"]: told})
    assert problem(admin, new) == told
    answered(changed(admin, new["slug"], overrides={"width": 40}))
    assert problem(admin, new) is None
    admin.call("PATCH", f"/api/admin/workflows/{slug}", json={"is_active": False})
    assert problem(admin, new) == f"Its workflow '{slug}' is switched off."


def problem(admin: Caller, effect: Json) -> str | None:
    told: str | None = answered(admin.get(f"{ADDRESS}/{effect['slug']}"))["problem"]
    return told


BAD = [
    ("credits_cost", -1, "credits_cost"),
    ("credits_cost", 1_000_001, "credits_cost"),
    ("credits_cost", 2.5, "credits_cost"),
    ("credits_cost", "5", "credits_cost"),
    ("credits_cost", None, "credits_cost"),
    ("provider", "cheap", "provider"),
    ("overrides", {"width": 5}, "overrides.width"),
    ("overrides", {"width": "big"}, "overrides.width"),
    ("overrides", {"colour": 5}, "overrides.colour"),
    ("overrides", {"image": NOBODY}, "overrides.image"),
    ("overrides", [], "overrides"),
    ("workflow", "nothing", "workflow"),
    ("workflow", "../x", "workflow"),
    ("name", "", "name"),
    ("description", "x" * 2001, "description"),
    ("is_active", "perhaps", "is_active"),
    ("price", 5, "price"),
]


@pytest.mark.parametrize(("field", "value", "told"), BAD)
def test_a_bad_field_is_refused_by_its_name(
    admin: Caller, field: str, value: Any, told: str
) -> None:
    new = body()
    answered(admin.post(ADDRESS, json=new), 201)
    with nothing_written(admin.backend):
        refused(admin.post(ADDRESS, json=body(**{field: value})), 422, "invalid_input", told)
        refused(changed(admin, new["slug"], **{field: value}), 422, "invalid_input", told)


@pytest.mark.parametrize("slug", [None, "", "An effect", "x" * 64, NOBODY, "a" * 32])
def test_a_bad_slug_is_refused(admin: Caller, slug: str | None) -> None:
    with nothing_written(admin.backend):
        refused(admin.post(ADDRESS, json=body(slug=slug)), 422, "invalid_input", "slug")


def test_what_does_not_exist_is_not_found(admin: Caller) -> None:
    with nothing_written(admin.backend):
        for name in ("nothing", NOBODY):
            refused(admin.get(f"{ADDRESS}/{name}"), 404, "not_found")
            refused(changed(admin, name, credits_cost=1), 404, "not_found")
