"""What GPU workers say and ask. They register with their fleet's secret, and get a token.

A lease that is not the caller's any more is answered with 409 `lease_lost`, everywhere; a
report that was accepted may be repeated.
"""

from typing import Any

from flask import Response, jsonify, request

from models.dispatches import Lease
from tasks import heartbeats, leasing, outcomes, registration, reports
from tasks.uploads import Made
from webapp.api.worker_shapes import (
    CompleteSchema,
    FailSchema,
    HeartbeatAnswerSchema,
    HeartbeatSchema,
    LeasedSchema,
    PollSchema,
    RegisteredSchema,
    RegisterSchema,
    RequeueSchema,
    StatusSchema,
)
from webapp.auth import bearer_token, has_bearer_token, let_workers_in
from webapp.context import backend, worker
from webapp.openapi import ApiBlueprint
from webapp.shapes import iso

blueprint = let_workers_in(
    ApiBlueprint("worker", __name__, url_prefix="/api/worker", description=__doc__),
    entrance="register",
)

SECRET_HEADER = {"in": "header", "name": "X-Fleet-Secret", "schema": {"type": "string"}}


@blueprint.post("/register")
@blueprint.arguments(RegisterSchema())
@blueprint.response(201, RegisteredSchema)
@blueprint.alt_response(401, "UNAUTHORIZED")
@blueprint.alt_response(403, "FORBIDDEN")
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
@blueprint.doc(parameters=[SECRET_HEADER], security=[])
def register(new: dict[str, Any]) -> dict[str, Any]:
    """Join a fleet. A worker that starts anew may show its old token to keep its id"""
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
@blueprint.arguments(PollSchema())
@blueprint.response(200, LeasedSchema)
@blueprint.alt_response(204, description="Nothing waits for this worker.")
def poll(asked: dict[str, Any]) -> Response:
    """Ask for the best waiting job"""
    is_full = asked["current_load"] >= asked["max_concurrency"]
    if is_full or worker().is_draining:
        return Response(status=204)
    leased = leasing.lease(
        backend(), worker(), providers=asked["providers"], holds_nothing=asked["holds_nothing"]
    )
    return jsonify(lease_shape(leased)) if leased else Response(status=204)


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
        "trace": dispatch.traceparent,
    }


@blueprint.post("/heartbeat")
@blueprint.arguments(HeartbeatSchema())
@blueprint.response(200, HeartbeatAnswerSchema)
@blueprint.alt_response(409, "CONFLICT")
def heartbeat(told: dict[str, Any]) -> dict[str, Any]:
    """Still here: extends the lease, brings progress, asks for fresh addresses"""
    if told["dispatch_id"] is None:
        return heartbeat_shape(heartbeats.idle(backend(), worker()))
    lease = lease_in(told)
    told["outputs"] = [Made(**output) for output in told["outputs"] or ()]
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
    ids = report.pop("dispatch_id"), report.pop("lease_token")
    return Lease(*ids, fleet_id=worker().fleet_id)


@blueprint.post("/complete")
@blueprint.arguments(CompleteSchema())
@blueprint.response(200, StatusSchema)
@blueprint.alt_response(409, "CONFLICT")
def complete(report: dict[str, Any]) -> dict[str, Any]:
    """The job is done and its outputs are uploaded"""
    lease = lease_in(report)
    report["outputs"] = [Made(**output) for output in report["outputs"]]
    return {"status": reports.complete(backend(), worker(), lease, **report).status}


@blueprint.post("/fail")
@blueprint.arguments(FailSchema())
@blueprint.response(200, StatusSchema)
@blueprint.alt_response(409, "CONFLICT")
def fail(report: dict[str, Any]) -> dict[str, Any]:
    """The job went wrong: for good, or, if `retryable`, only here and now"""
    lease = lease_in(report)
    report["code"] = report.pop("error_code")
    return {"status": reports.fail(backend(), worker(), lease, **report)}


@blueprint.post("/requeue")
@blueprint.arguments(RequeueSchema())
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
    backend().workers.forget(bearer_token())
