"""What users can choose from: the shape of effects, and which of them are shown."""

from typing import Any
from uuid import uuid4

import pytest
from flask.testing import FlaskClient

from models import effects, workflows
from tests.webapp.calls import Json, MakeCaller, answered, new_effect, refused


def by_slug(listed: Json) -> dict[str, Json]:
    return {effect["slug"]: effect for effect in listed["items"]}


def test_the_list_shows_every_effect_on_offer(caller: MakeCaller) -> None:
    listed = answered(caller().get("/api/effects?limit=200"))
    assert set(listed) == {"items", "next_cursor"}
    assert listed["next_cursor"] is None
    assert {"image-invert", "thumbnail", "video-invert", "colour-card"} <= set(by_slug(listed))


def test_an_effect_shows_all_its_fields(caller: MakeCaller) -> None:
    shown = answered(caller().get("/api/effects/image-blur"))
    assert set(shown) == {
        "id", "slug", "name", "description", "kind", "credits_cost", "inputs", "needs_media",
        "estimated_seconds",
    }  # fmt: skip
    assert (shown["slug"], shown["name"], shown["kind"]) == ("image-blur", "Blur", "image")
    assert (shown["credits_cost"], shown["needs_media"]) == (5, True)
    assert shown["estimated_seconds"] is None  # until one has run
    assert shown["inputs"] == [
        {"name": "image", "type": "image", "label": "Image", "required": True, "default": None},
        {"name": "radius", "type": "integer", "label": "Radius in pixels", "required": False,
         "default": 5, "min": 1.0, "max": 31.0},
        {"name": "sigma", "type": "number", "label": "Strength", "required": False,
         "default": 2.0, "min": 0.1, "max": 10.0},
    ]  # fmt: skip


def test_a_choice_shows_what_can_be_chosen(caller: MakeCaller) -> None:
    shown = answered(caller().get("/api/effects/image-scale"))
    crop = next(one for one in shown["inputs"] if one["name"] == "crop")
    assert (crop["type"], crop["choices"]) == ("choice", ["disabled", "center"])


def test_what_an_effect_fixes_is_not_shown(caller: MakeCaller) -> None:
    shown = answered(caller().get("/api/effects/thumbnail"))
    assert [one["name"] for one in shown["inputs"]] == ["image"]
    assert "placeholder" not in str(shown)


def test_an_effect_without_media_says_so(caller: MakeCaller) -> None:
    assert answered(caller().get("/api/effects/colour-card"))["needs_media"] is False


def test_an_effect_is_found_by_id_as_well_as_by_slug(caller: MakeCaller) -> None:
    ada = caller()
    by_name = answered(ada.get("/api/effects/image-invert"))
    assert answered(ada.get(f"/api/effects/{by_name['id']}")) == by_name
    assert by_slug(answered(ada.get("/api/effects?limit=200")))["image-invert"] == by_name


@pytest.mark.parametrize("withdrawn", ["effect", "workflow"])
def test_what_is_switched_off_is_not_on_offer(caller: MakeCaller, withdrawn: str) -> None:
    ada = caller()
    slug = new_effect(ada.backend)
    assert slug in by_slug(answered(ada.get("/api/effects?limit=200")))
    with ada.backend.databases.central() as session:
        model: Any = effects.find(session, slug) if withdrawn == "effect" else None
        (model or workflows.get(session, slug)).is_active = False
    refused(ada.get(f"/api/effects/{slug}"), 404, "not_found")
    assert slug not in by_slug(answered(ada.get("/api/effects?limit=200")))


def test_an_unknown_effect_is_not_found(caller: MakeCaller) -> None:
    ada = caller()
    for name in ("no-such-effect", str(uuid4()), "x" * 5000, "%F0%9F%90%88"):
        refused(ada.get(f"/api/effects/{name}"), 404, "not_found")


def test_effects_are_for_people_who_are_signed_in(client: FlaskClient) -> None:
    for address in ("/api/effects", "/api/effects/image-invert"):
        refused(client.get(address), 401, "unauthorized")
