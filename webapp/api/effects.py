"""What users can choose from."""

from typing import Any

from marshmallow import Schema, fields, validate

from models import effects
from models.effects import Effect
from models.properties import TYPES
from models.workflows import Kind
from tasks.catalog_view import offered
from webapp.auth import let_users_in
from webapp.context import backend
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of

blueprint = let_users_in(
    ApiBlueprint("effects", __name__, url_prefix="/api/effects", description=__doc__)
)


class InputSchema(Schema):
    name = fields.String(required=True)
    type = fields.String(required=True, validate=validate.OneOf(TYPES))
    required = fields.Boolean(required=True)
    default = fields.Raw(required=True, allow_none=True)
    choices = fields.List(fields.Raw())
    min = fields.Float()
    max = fields.Float()
    label = fields.String()
    max_length = fields.Integer()


class EffectSchema(Schema):
    id = fields.UUID(required=True)
    slug = fields.String(required=True, metadata={"example": "image-invert"})
    name = fields.String(required=True)
    description = fields.String(required=True)
    kind = fields.String(required=True, validate=validate.OneOf([*Kind]))
    credits_cost = fields.Integer(required=True)
    inputs = fields.List(fields.Nested(InputSchema), required=True)
    needs_media = fields.Boolean(required=True)
    estimated_seconds = fields.Float(required=True, allow_none=True)


@blueprint.get("")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, page_of(EffectSchema))
def list_effects(query: dict[str, Any]) -> dict[str, Any]:
    """All effects on offer"""
    with backend().databases.central(read_only=True) as session:
        found, cursor = page(
            session,
            effects.offered(),
            newest=(Effect.created_at, Effect.id),
            scope="effects",
            **query,
        )
    return {"items": [offered(effect) for effect in found], "next_cursor": cursor}


@blueprint.get("/<string:id_or_slug>")
@blueprint.response(200, EffectSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def show_effect(id_or_slug: str) -> dict[str, Any]:
    """One effect, by id or slug"""
    with backend().databases.central(read_only=True) as session:
        return offered(effects.get(session, id_or_slug))
