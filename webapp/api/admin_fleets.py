"""For administrators: fleets, and which workflows they run."""

from typing import Any

from marshmallow import Schema, fields, validate

from models import fleets
from models.fleets import MAX_WORKERS_LIMIT, STAGE_MAX_LENGTH, Fleet
from tasks import fleet_setup
from tasks.catalog_view import fleets_shown
from webapp.api.admin import actor
from webapp.api.admin_workflows import NAME, SLUG
from webapp.auth import let_admins_in
from webapp.context import backend
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of
from webapp.shapes import Time

blueprint = let_admins_in(
    ApiBlueprint("admin-fleets", __name__, url_prefix="/api/admin/fleets", description=__doc__)
)

WORKFLOWS_MAX = 1000


def stage_field() -> fields.String:
    return fields.String(
        load_default=lambda: backend().settings.stage,
        validate=validate.Length(1, STAGE_MAX_LENGTH),
        metadata={"example": "dev", "description": "Default: the stage of this deployment."},
    )


class StageQuery(Schema):
    stage = stage_field()


class FleetsQuery(PageQuery):
    stage = stage_field()


class FleetChangeSchema(Schema):
    name = fields.String(validate=NAME)
    max_workers = fields.Integer(
        strict=True,
        validate=validate.Range(0, MAX_WORKERS_LIMIT),
        metadata={"description": "Workers it may have at once. Nobody is sent away."},
    )
    bundle = fields.String(
        allow_none=True,
        validate=NAME,
        metadata={"description": "The set of models its machines carry."},
    )
    is_active = fields.Boolean(
        metadata={"description": "Off: no more orders and no more workers; those there work on."}
    )


class NewFleetSchema(Schema):
    slug = fields.String(required=True, validate=SLUG, metadata={"example": "gpu-video"})
    stage = stage_field()
    name = fields.String(load_default=None, validate=NAME, metadata={"example": "Video"})
    max_workers = fields.Integer(
        strict=True, load_default=50, validate=validate.Range(0, MAX_WORKERS_LIMIT)
    )
    bundle = fields.String(load_default=None, validate=NAME)


class MappingSchema(Schema):
    workflows = fields.List(
        fields.String(validate=SLUG),
        required=True,
        validate=validate.Length(max=WORKFLOWS_MAX),
        metadata={"example": ["image-invert"], "description": "All that it runs from now on."},
    )


class FleetSchema(Schema):
    id = fields.UUID(required=True)
    slug = fields.String(required=True)
    stage = fields.String(required=True)
    name = fields.String(required=True)
    max_workers = fields.Integer(required=True)
    bundle = fields.String(required=True, allow_none=True)
    is_active = fields.Boolean(required=True)
    workflows = fields.List(fields.String(), required=True)
    workers_present = fields.Integer(required=True)
    created_at = Time(required=True)


def _shape(fleet: Fleet) -> dict[str, Any]:
    with backend().databases.central(read_only=True) as session:
        [shown] = fleets_shown(backend(), session, [fleet])
    return shown.told()


@blueprint.post("")
@blueprint.arguments(NewFleetSchema)
@blueprint.response(201, FleetSchema)
@blueprint.alt_response(409, "CONFLICT")
def create_fleet(new: dict[str, Any]) -> dict[str, Any]:
    """Make a fleet. Workers may join it at once; it runs nothing yet"""
    return _shape(fleet_setup.create(backend(), actor=actor(), **new))


@blueprint.get("")
@blueprint.arguments(FleetsQuery, location="query")
@blueprint.response(200, page_of(FleetSchema))
def list_fleets(query: dict[str, Any]) -> dict[str, Any]:
    """All fleets of a stage"""
    stage = query.pop("stage")
    with backend().databases.central(read_only=True) as session:
        found, cursor = page(
            session,
            fleets.of_stage(stage),
            newest=(Fleet.created_at, Fleet.id),
            scope=f"admin-fleets {stage}",
            **query,
        )
        shown = fleets_shown(backend(), session, found)
    return {"items": [one.told() for one in shown], "next_cursor": cursor}


@blueprint.patch("/<string:slug>")
@blueprint.arguments(StageQuery, location="query")
@blueprint.arguments(FleetChangeSchema)
@blueprint.response(200, FleetSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def change_fleet(query: dict[str, Any], given: dict[str, Any], slug: str) -> dict[str, Any]:
    """Change a fleet"""
    return _shape(fleet_setup.change(backend(), slug=slug, actor=actor(), **query, **given))


@blueprint.put("/<string:slug>/workflows")
@blueprint.arguments(StageQuery, location="query")
@blueprint.arguments(MappingSchema)
@blueprint.response(200, FleetSchema)
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
def map_workflows(query: dict[str, Any], given: dict[str, Any], slug: str) -> dict[str, Any]:
    """Say which workflows a fleet runs. Jobs that wait move along with theirs"""
    wanted = given["workflows"]
    return _shape(
        fleet_setup.run_workflows(backend(), slug=slug, wanted=wanted, actor=actor(), **query)
    )
