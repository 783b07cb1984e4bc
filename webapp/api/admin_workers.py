"""For administrators: the workers that registered themselves."""

from typing import Any

from marshmallow import Schema, fields, validate

from models import enlisted, slugs
from models.effects import Provider
from models.workers import Worker
from tasks import worker_orders
from tasks.worker_list import workers_shown
from webapp.api.admin import actor
from webapp.api.admin_fleets import FleetsQuery
from webapp.auth import let_admins_in
from webapp.context import backend
from webapp.openapi import ApiBlueprint
from webapp.pages import page, page_of
from webapp.shapes import Time

blueprint = let_admins_in(
    ApiBlueprint("admin-workers", __name__, url_prefix="/api/admin/workers", description=__doc__)
)


class WorkersQuery(FleetsQuery):
    fleet = fields.String(
        load_default=None,
        validate=validate.Length(1, slugs.MAX_LENGTH),
        metadata={"description": "Only those of this fleet."},
    )


class HeldSchema(Schema):
    dispatch_id = fields.UUID(required=True)
    job_id = fields.UUID(required=True)
    attempt = fields.Integer(required=True)
    progress = fields.Float(required=True)
    current_node = fields.String(required=True, allow_none=True)
    leased_at = Time(required=True, allow_none=True)
    lease_expires_at = Time(required=True, allow_none=True)


class WorkerSchema(Schema):
    id = fields.UUID(required=True)
    worker_id = fields.String(required=True, metadata={"description": "Its own name."})
    fleet = fields.String(required=True)
    stage = fields.String(required=True)
    status = fields.String(required=True, validate=validate.OneOf(["present", "gone"]))
    is_approved = fields.Boolean(required=True, metadata={"description": "Else locked out."})
    is_draining = fields.Boolean(required=True, metadata={"description": "Takes no more jobs."})
    providers = fields.List(fields.String(validate=validate.OneOf([*Provider])), required=True)
    capabilities = fields.Dict(keys=fields.String(), required=True)
    max_concurrency = fields.Integer(required=True)
    current_load = fields.Integer(required=True, metadata={"description": "By its last word."})
    holds = fields.List(
        fields.Nested(HeldSchema), required=True, metadata={"description": "What it works on."}
    )
    last_seen_at = Time(required=True)
    registered_at = Time(required=True)


class WorkerTokenSchema(WorkerSchema):
    token = fields.String(required=True, metadata={"description": "Shown once. 64 characters."})


def _shape(worker: Worker) -> dict[str, Any]:
    with backend().databases.central(read_only=True) as session:
        [shown] = workers_shown(backend(), session, [worker])
    return shown.told()


@blueprint.get("")
@blueprint.arguments(WorkersQuery, location="query")
@blueprint.response(200, page_of(WorkerSchema))
def list_workers(query: dict[str, Any]) -> dict[str, Any]:
    """All workers of a stage, or of one of its fleets, those that are gone too"""
    asked = {name: query.pop(name) for name in ("stage", "fleet")}
    with backend().databases.central(read_only=True) as session:
        found, cursor = page(
            session,
            enlisted.everybody(**asked),
            newest=(Worker.created_at, Worker.id),
            scope=f"admin-workers {asked}",
            **query,
        )
        shown = workers_shown(backend(), session, found)
    return {"items": [one.told() for one in shown], "next_cursor": cursor}


@blueprint.post("/<string:worker>/approve")
@blueprint.response(200, WorkerSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def approve_worker(worker: str) -> dict[str, Any]:
    """Let a worker in again that was locked out. By its id or its name, as all of these"""
    return _shape(worker_orders.approve(backend(), worker, actor=actor()))


@blueprint.post("/<string:worker>/revoke")
@blueprint.response(200, WorkerSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def revoke_worker(worker: str) -> dict[str, Any]:
    """Lock a worker out: token and name are refused, its job is given to others"""
    return _shape(worker_orders.revoke(backend(), worker, actor=actor()))


@blueprint.post("/<string:worker>/drain")
@blueprint.response(200, WorkerSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def drain_worker(worker: str) -> dict[str, Any]:
    """Have a worker take no more jobs; it finishes the one it has"""
    return _shape(worker_orders.drain(backend(), worker, actor=actor()))


@blueprint.post("/<string:worker>/undrain")
@blueprint.response(200, WorkerSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def undrain_worker(worker: str) -> dict[str, Any]:
    """Have a worker take jobs again"""
    return _shape(worker_orders.drain(backend(), worker, draining=False, actor=actor()))


@blueprint.post("/<string:worker>/rotate-token")
@blueprint.response(200, WorkerTokenSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def rotate_token(worker: str) -> dict[str, Any]:
    """Give a worker a new token. The old one is refused from now on"""
    changed, token = worker_orders.rotate_token(backend(), worker, actor=actor())
    return _shape(changed) | {"token": token}
