"""For administrators: effects, what they cost and what they fix."""

from typing import Any

from marshmallow import Schema, fields, validate

from models import effects, slugs
from models.effects import PRICE_MAX_TOKENS, Effect, Provider
from tasks import catalog
from tasks.catalog_view import effects_shown
from webapp.api.admin import actor
from webapp.api.admin_workflows import NAME, SLUG
from webapp.api.effects import EffectSchema
from webapp.auth import let_admins_in
from webapp.context import backend
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of
from webapp.shapes import Time

blueprint = let_admins_in(
    ApiBlueprint("admin-effects", __name__, url_prefix="/api/admin/effects", description=__doc__)
)

PRICE: dict[str, Any] = {
    "strict": True,
    "validate": validate.Range(0, PRICE_MAX_TOKENS),
    "metadata": {"example": 5, "description": "Tokens. Orders made before keep their price."},
}


class EffectChangeSchema(Schema):
    name = fields.String(validate=NAME)
    description = fields.String(validate=validate.Length(max=slugs.TEXT_MAX_LENGTH))
    workflow = fields.String(validate=SLUG, metadata={"example": "image-invert"})
    credits_cost = fields.Integer(**PRICE)
    overrides = fields.Dict(
        keys=fields.String(),
        metadata={
            "example": {"width": 128},
            "description": "Properties that the effect fixes; users neither see nor set them.",
        },
    )
    provider = fields.String(validate=validate.OneOf([*Provider]))
    is_active = fields.Boolean(metadata={"description": "Off: nobody can order it."})


class NewEffectSchema(EffectChangeSchema):
    slug = fields.String(required=True, validate=SLUG, metadata={"example": "thumbnail"})
    name = fields.String(required=True, validate=NAME, metadata={"example": "Thumbnail"})
    workflow = fields.String(required=True, validate=SLUG, metadata={"example": "image-invert"})
    credits_cost = fields.Integer(required=True, **PRICE)


class WholeEffectSchema(EffectSchema):
    workflow = fields.String(required=True)
    overrides = fields.Dict(keys=fields.String(), required=True)
    provider = fields.String(required=True, validate=validate.OneOf([*Provider]))
    is_active = fields.Boolean(required=True)
    problem = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "Why nobody can order it in this stage."},
    )
    created_at = Time(required=True)


def _shape(effect: Effect) -> dict[str, Any]:
    with backend().databases.central(read_only=True) as session:
        [shown] = effects_shown(backend(), session, [effect])
    return shown.told()


@blueprint.post("")
@blueprint.arguments(NewEffectSchema)
@blueprint.response(201, WholeEffectSchema)
@blueprint.alt_response(409, "CONFLICT")
def create_effect(new: dict[str, Any]) -> dict[str, Any]:
    """Offer an effect"""
    return _shape(catalog.create_effect(backend(), actor=actor(), **new))


@blueprint.get("")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, page_of(WholeEffectSchema))
def list_effects(query: dict[str, Any]) -> dict[str, Any]:
    """All effects, on offer or not"""
    with backend().databases.central(read_only=True) as session:
        found, cursor = page(
            session,
            effects.everything(),
            newest=(Effect.created_at, Effect.id),
            scope="admin-effects",
            **query,
        )
        shown = effects_shown(backend(), session, found)
    return {"items": [one.told() for one in shown], "next_cursor": cursor}


@blueprint.get("/<string:slug>")
@blueprint.response(200, WholeEffectSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def show_effect(slug: str) -> dict[str, Any]:
    """One effect, by id or slug"""
    with backend().databases.central(read_only=True) as session:
        return _shape(effects.get(session, slug, offered_only=False))


@blueprint.patch("/<string:slug>")
@blueprint.arguments(EffectChangeSchema)
@blueprint.response(200, WholeEffectSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def change_effect(given: dict[str, Any], slug: str) -> dict[str, Any]:
    """Change an effect. Jobs that are ordered stay as they are"""
    return _shape(catalog.change_effect(backend(), slug, actor=actor(), **given))
