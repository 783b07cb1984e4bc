"""For administrators: what waits, runs and has ended, for all tenants; and what comes first."""

from http import HTTPStatus
from typing import Any
from uuid import UUID

from marshmallow import Schema, fields, validate

from models.dispatches import Dispatch, DispatchStatus
from models.effects import Provider
from models.lanes import PRIORITY_LIMIT
from tasks import dispatch_list, interventions
from tasks.dispatch_list import ShownDispatch
from webapp.api import ai_jobs
from webapp.api.admin import actor
from webapp.api.admin_audit import AuditSchema
from webapp.auth import let_admins_in
from webapp.context import backend
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of
from webapp.shapes import brief, iso

blueprint = let_admins_in(
    ApiBlueprint(
        "admin-dispatches", __name__, url_prefix="/api/admin/dispatches", description=__doc__
    )
)

FLEET: dict[str, Any] = {
    "validate": validate.Length(1, 100),
    "metadata": {"description": "Its slug."},
}


class DispatchSchema(Schema):
    id = fields.UUID(required=True)
    job_id = fields.UUID(required=True)
    tenant_id = fields.UUID(required=True)
    user_id = fields.UUID(required=True)
    workflow = fields.String(required=True)
    fleet = fields.String(required=True)
    stage = fields.String(required=True)
    provider = fields.String(required=True, validate=validate.OneOf([*Provider]))
    status = fields.String(required=True, validate=validate.OneOf([*DispatchStatus]))
    priority = fields.Integer(required=True, metadata={"description": "Higher is first."})
    attempts = fields.Integer(required=True)
    max_attempts = fields.Integer(required=True)
    worker_id = fields.String(required=True, allow_none=True)
    progress = fields.Float(required=True, metadata={"minimum": 0, "maximum": 1})
    current_node = fields.String(required=True, allow_none=True)
    last_error = fields.String(
        required=True, allow_none=True, metadata={"description": "In lists its beginning."}
    )
    available_at = fields.String(
        required=True, allow_none=True, metadata={"description": "Set while it backs off."}
    )
    leased_at = fields.String(required=True, allow_none=True)
    lease_expires_at = fields.String(required=True, allow_none=True)
    duration_seconds = fields.Float(required=True, allow_none=True)
    dead_letter_id = fields.UUID(required=True, allow_none=True)
    redriven_job_id = fields.UUID(
        required=True, allow_none=True, metadata={"description": "As which it was ordered again."}
    )
    created_at = fields.String(required=True)
    updated_at = fields.String(required=True)


class WholeDispatchSchema(DispatchSchema):
    job = fields.Nested(
        ai_jobs.JobSchema,
        required=True,
        allow_none=True,
        metadata={"description": "As its user sees it; null while its pool is away."},
    )
    timeline = fields.List(
        fields.Nested(AuditSchema),
        required=True,
        metadata={"description": "What happened to it, oldest first."},
    )


class DispatchesQuery(PageQuery):
    status = fields.String(load_default=None, validate=validate.OneOf([*DispatchStatus]))
    fleet = fields.String(load_default=None, **FLEET)
    tenant = fields.UUID(load_default=None)


class PrioritySchema(Schema):
    priority = fields.Integer(
        required=True,
        strict=True,
        validate=validate.Range(-PRIORITY_LIMIT, PRIORITY_LIMIT),
        metadata={"example": 10, "description": "Higher is served first; orders have 0."},
    )


def shape(shown: ShownDispatch) -> dict[str, Any]:
    dispatch, letter = shown.dispatch, shown.letter
    as_they_are = (
        "id tenant_id user_id provider status priority attempts max_attempts worker_id progress "
        "current_node last_error duration_seconds"
    )
    times = "available_at leased_at lease_expires_at created_at updated_at"
    return (
        {name: getattr(dispatch, name) for name in as_they_are.split()}
        | {name: iso(getattr(dispatch, name)) for name in times.split()}
        | {
            "job_id": dispatch.tenant_job_id,
            "workflow": shown.workflow,
            "fleet": shown.fleet.slug,
            "stage": shown.fleet.stage,
            "dead_letter_id": letter.id if letter else None,
            "redriven_job_id": letter.redriven_job_id if letter else None,
        }
    )


def in_list(shown: ShownDispatch) -> dict[str, Any]:
    whole = shape(shown)
    return whole | {"last_error": brief(whole["last_error"])}


def _shape(dispatch: Dispatch) -> dict[str, Any]:
    with backend().databases.central(read_only=True) as session:
        [shown] = dispatch_list.dispatches_shown(session, [dispatch])
    return shape(shown)


def _id(any_id: UUID) -> UUID:
    return dispatch_list.find(backend(), any_id).id


@blueprint.get("")
@blueprint.arguments(DispatchesQuery, location="query")
@blueprint.response(200, page_of(DispatchSchema))
def list_dispatches(query: dict[str, Any]) -> dict[str, Any]:
    """Jobs of all tenants, as the queue knows them; newest first"""
    asked = {name: query.pop(name) for name in ("status", "fleet")}
    asked["tenant_id"] = query.pop("tenant")
    with backend().databases.central(read_only=True) as session:
        found, cursor = page(
            session,
            dispatch_list.dispatches_wanted(session, **asked),
            newest=(Dispatch.created_at, Dispatch.id),
            scope=f"admin-dispatches {asked}",
            **query,
        )
        shown = dispatch_list.dispatches_shown(session, found)
    return {"items": [in_list(one) for one in shown], "next_cursor": cursor}


@blueprint.get("/<uuid:any_id>")
@blueprint.response(200, WholeDispatchSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def show_dispatch(any_id: UUID) -> dict[str, Any]:
    """One, with its story. By its own id or by that of its job, as all of these"""
    dispatch = dispatch_list.find(backend(), any_id)
    job = dispatch_list.job_of(backend(), dispatch)
    with backend().databases.central(read_only=True) as session:
        timeline = dispatch_list.timeline(session, dispatch.id)
    return _shape(dispatch) | {
        "job": ai_jobs.shapes([job])[0] if job else None,
        "timeline": timeline,
    }


@blueprint.patch("/<uuid:any_id>")
@blueprint.arguments(PrioritySchema)
@blueprint.response(200, DispatchSchema)
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
def change_priority(given: dict[str, Any], any_id: UUID) -> dict[str, Any]:
    """Change the priority of a job that waits"""
    return _shape(interventions.set_priority(backend(), _id(any_id), actor=actor(), **given))


@blueprint.post("/<uuid:any_id>/front")
@blueprint.response(200, DispatchSchema)
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
def send_to_front(any_id: UUID) -> dict[str, Any]:
    """Put a job that waits ahead of all that wait for its fleet; what runs is not disturbed"""
    return _shape(interventions.front(backend(), _id(any_id), actor=actor()))


@blueprint.post("/<uuid:any_id>/retry")
@blueprint.response(200, DispatchSchema, description="What waits now: after a failure a new one.")
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
@blueprint.alt_response(422, HTTPStatus(422).name)
def retry(any_id: UUID) -> dict[str, Any]:
    """Try a job that backs off now; order one that failed again, which takes its price again"""
    return _shape(interventions.retry(backend(), _id(any_id), actor=actor()))


@blueprint.post("/<uuid:any_id>/cancel")
@blueprint.response(200, DispatchSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def cancel(any_id: UUID) -> dict[str, Any]:
    """Cancel a job that has not ended, and give its tokens back. May be repeated."""
    return _shape(interventions.cancel(backend(), _id(any_id), actor=actor()))
