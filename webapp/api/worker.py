"""What GPU workers say and ask. They register with their fleet's secret, and get a token.

A lease that is not the caller's any more is answered with 409 `lease_lost`, everywhere; a
report that was accepted may be repeated.
"""

from typing import Any

from flask import Response, request
from marshmallow import Schema, ValidationError, fields, validate

from models.dispatches import Lease
from models.effects import Provider
from models.object_paths import EXTENSIONS
from tasks import heartbeats, leasing, outcomes, registration, reports
from tasks.uploads import Made
from webapp.auth import bearer_token, has_bearer_token, let_anybody_in, let_workers_in
from webapp.context import backend, worker
from webapp.openapi import ApiBlueprint
from webapp.shapes import iso

#: The one door for those who have no token yet. Both share the name, for the documentation.
entrance = let_anybody_in(
    ApiBlueprint("worker", __name__, url_prefix="/api/worker", description=__doc__)
)
blueprint = let_workers_in(
    ApiBlueprint("worker-reports", __name__, url_prefix="/api/worker", description=__doc__)
)

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*\Z"  # it becomes part of a Redis channel and of log lines


def small_object(value: dict[str, Any]) -> None:
    if len(str(value)) > 20_000:
        raise ValidationError("Must be smaller.")


class ProvidersSchema(Schema):
    providers = fields.List(
        fields.String(validate=validate.OneOf([*Provider])),
        load_default=lambda: [Provider.SELF_HOSTED.value],
        validate=validate.Length(1, 3),
    )
    max_concurrency = fields.Integer(load_default=1, validate=validate.Range(1, 64))
    capabilities = fields.Dict(
        keys=fields.String(), load_default=dict, validate=small_object, metadata={"example": {}}
    )


class RegisterSchema(ProvidersSchema):
    worker_id = fields.String(
        required=True,
        validate=[validate.Length(1, 100), validate.Regexp(NAME)],
        metadata={"example": "i-0abc1234"},
    )
    fleet_slug = fields.String(
        required=True, validate=validate.Length(1, 100), metadata={"example": "gpu-default"}
    )
    stage = fields.String(required=True, validate=validate.Length(1, 50))


class RegisteredSchema(Schema):
    worker_id = fields.String(required=True)
    token = fields.String(required=True)
    queue = fields.String(required=True)
    workflows_assigned = fields.List(fields.String(), required=True)
    heartbeat_seconds = fields.Integer(required=True)
    lease_seconds = fields.Integer(required=True)


class PollSchema(ProvidersSchema):
    current_load = fields.Integer(load_default=0, validate=validate.Range(min=0, max=64))


class MadeSchema(Schema):
    name = fields.String(required=True, validate=validate.Length(1, 200))
    mime_type = fields.String(required=True, validate=validate.OneOf([*EXTENSIONS]))
    size_bytes = fields.Integer(required=True, strict=True, validate=validate.Range(0, 2**53))
    sha256 = fields.String(
        load_default=None, allow_none=True, validate=validate.Regexp(r"[0-9a-f]{64}\Z")
    )


class LeaseSchema(Schema):
    dispatch_id = fields.UUID(required=True)
    lease_token = fields.UUID(required=True)


class HeartbeatSchema(Schema):
    dispatch_id = fields.UUID(load_default=None, allow_none=True)
    lease_token = fields.UUID(load_default=None, allow_none=True)
    progress = fields.Float(load_default=None, allow_none=True, validate=validate.Range(0, 1))
    current_node = fields.String(
        load_default=None, allow_none=True, validate=validate.Length(max=200)
    )
    outputs = fields.List(
        fields.Nested(MadeSchema), load_default=None, validate=validate.Length(max=100)
    )


class CompleteSchema(LeaseSchema):
    outputs = fields.List(
        fields.Nested(MadeSchema), required=True, validate=validate.Length(1, 100)
    )
    provider_job_id = fields.String(
        load_default=None, allow_none=True, validate=validate.Length(max=200)
    )
    timings = fields.Dict(
        keys=fields.String(),
        values=fields.Float(),
        load_default=None,
        allow_none=True,
        validate=validate.Length(max=20),
        metadata={"example": {"run_seconds": 4.2}},
    )


class FailSchema(LeaseSchema):
    error = fields.String(required=True, metadata={"example": "Out of memory"})
    trace = fields.String(load_default=None, allow_none=True)
    error_code = fields.String(
        load_default=None, allow_none=True, validate=validate.Regexp(r"[a-z][a-z0-9_]{0,63}\Z")
    )
    retryable = fields.Boolean(load_default=False)


class RequeueSchema(LeaseSchema):
    reason = fields.String(required=True, validate=validate.Length(1, 500))


class StatusSchema(Schema):
    status = fields.String(required=True)


@entrance.post("/register")
@entrance.arguments(RegisterSchema)
@entrance.response(201, RegisteredSchema)
@entrance.alt_response(401, "UNAUTHORIZED")
@entrance.alt_response(403, "FORBIDDEN")
@entrance.alt_response(404, "NOT_FOUND")
@entrance.alt_response(409, "CONFLICT")
@entrance.doc(
    parameters=[{"in": "header", "name": "X-Fleet-Secret", "schema": {"type": "string"}}],
    security=[],
)
def register(new: dict[str, Any]) -> dict[str, Any]:
    """Join a fleet. A worker that starts anew may show its old token to keep its id."""
    registered = registration.register(
        backend(),
        registration.Request(**new),
        secret=request.headers.get("X-Fleet-Secret", ""),
        old_token=bearer_token() if has_bearer_token() else None,
    )
    settings = backend().settings
    return {
        "worker_id": new["worker_id"],
        "token": registered.token,
        "queue": new["fleet_slug"],
        "workflows_assigned": registered.workflows,
        "heartbeat_seconds": settings.heartbeat_seconds,
        "lease_seconds": settings.lease_seconds,
    }


@blueprint.post("/poll")
@blueprint.arguments(PollSchema)
@blueprint.response(200, description="A lease, with everything the job needs.")
@blueprint.alt_response(204, description="Nothing waits for this worker.")
def poll(asked: dict[str, Any]) -> Any:
    """Ask for the best waiting job"""
    is_full = asked["current_load"] >= asked["max_concurrency"]
    if is_full or worker().is_draining:
        return Response(status=204)
    leased = leasing.lease(backend(), worker(), providers=asked["providers"])
    return lease_shape(leased) if leased else Response(status=204)


def lease_shape(leased: leasing.Leased) -> dict[str, Any]:
    dispatch = leased.dispatch
    return {
        "dispatch_id": dispatch.id,
        "lease_token": dispatch.lease_token,
        "lease_expires_at": iso(dispatch.lease_expires_at),
        "job_id": dispatch.tenant_job_id,
        "provider": dispatch.provider,
        "workflow": leased.workflow,
        "attempt": dispatch.attempts,
        "deadline_seconds": backend().settings.job_seconds,
        "input_url": leased.input_url,
        "output_url": leased.output.url,
        "output_headers": leased.output.headers,
        "input_payload": {
            "graph": leased.graph,
            "output_node_id": leased.output_node_id,
            "assets": leased.assets,
        },
        "trace": None,
    }


@blueprint.post("/heartbeat")
@blueprint.arguments(HeartbeatSchema)
@blueprint.response(200)
@blueprint.alt_response(409, "CONFLICT")
def heartbeat(told: dict[str, Any]) -> dict[str, Any]:
    """Still here: extends the lease, brings progress, asks for fresh addresses"""
    dispatch_id, lease_token = told.pop("dispatch_id"), told.pop("lease_token")
    if dispatch_id is None or lease_token is None:
        return heartbeat_shape(heartbeats.idle(backend(), worker()))
    told["outputs"] = [Made(**output) for output in told["outputs"] or ()]
    lease = Lease(dispatch_id, lease_token)
    return heartbeat_shape(heartbeats.busy(backend(), worker(), lease, **told))


def heartbeat_shape(answer: heartbeats.Answer) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "cancel_requested": answer.cancel_requested,
        "draining": answer.draining,
        "next_heartbeat_seconds": answer.next_seconds,
        "lease_expires_at": iso(answer.lease_expires_at),
    }
    if answer.output is not None:
        shape |= {"output_url": answer.output.url, "output_headers": answer.output.headers}
    if answer.uploads is not None:
        shape["uploads"] = answer.uploads
    return shape


def lease_in(report: dict[str, Any]) -> Lease:
    return Lease(report.pop("dispatch_id"), report.pop("lease_token"))


@blueprint.post("/complete")
@blueprint.arguments(CompleteSchema)
@blueprint.response(200, StatusSchema)
@blueprint.alt_response(409, "CONFLICT")
def complete(report: dict[str, Any]) -> dict[str, Any]:
    """The job is done and its outputs are uploaded"""
    lease = lease_in(report)
    report["outputs"] = [Made(**output) for output in report["outputs"]]
    return {"status": reports.complete(backend(), worker(), lease, **report).status}


@blueprint.post("/fail")
@blueprint.arguments(FailSchema)
@blueprint.response(200, StatusSchema)
@blueprint.alt_response(409, "CONFLICT")
def fail(report: dict[str, Any]) -> dict[str, Any]:
    """The job went wrong: for good, or, if `retryable`, only here and now"""
    lease = lease_in(report)
    report["code"] = report.pop("error_code")
    return {"status": reports.fail(backend(), worker(), lease, **report)}


@blueprint.post("/requeue")
@blueprint.arguments(RequeueSchema)
@blueprint.response(200, StatusSchema)
@blueprint.alt_response(409, "CONFLICT")
def requeue(report: dict[str, Any]) -> dict[str, Any]:
    """The worker has to go. The job is next again, and the try does not count"""
    lease = lease_in(report)
    dispatch = outcomes.requeue(backend(), lease, reason=report["reason"], actor=worker().actor)
    return {"status": dispatch.status}


@blueprint.post("/deregister")
@blueprint.response(204)
def deregister() -> None:
    """Leave the fleet. What the worker still held is leased to others at once"""
    registration.deregister(backend(), worker())
