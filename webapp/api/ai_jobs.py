"""Order a job, watch it, cancel it."""

from typing import Any
from uuid import UUID

from flask import Response, jsonify, request
from marshmallow import Schema, fields, validate
from sqlalchemy import select

from models import jobs, logs
from models.errors import InvalidInput
from models.jobs import Job, JobStatus
from tasks import outcomes, queue_view, submission
from webapp.auth import let_users_in
from webapp.context import backend, live, principal
from webapp.live import JobTopic
from webapp.openapi import ApiBlueprint, refuse_unstorable
from webapp.pages import PageQuery, page, page_of
from webapp.shapes import OutputSchema, iso, output_shape

blueprint = let_users_in(
    ApiBlueprint("ai-jobs", __name__, url_prefix="/api/ai-jobs", description=__doc__)
)

KEY = validate.Length(1, 200)


class NewJobSchema(Schema):
    effect_id = fields.String(
        required=True,
        validate=validate.Length(1, 100),
        metadata={"description": "Id or slug.", "example": "image-invert"},
    )
    video_id = fields.UUID(load_default=None, allow_none=True)
    inputs = fields.Dict(
        keys=fields.String(), load_default=dict, metadata={"example": {"radius": 4}}
    )
    idempotency_key = fields.String(
        load_default=None,
        validate=KEY,
        metadata={
            "description": "Chosen by you; the same key again is the same job. "
            "The header Idempotency-Key does as well.",
            "example": "order-8e03978e",
        },
    )


class ErrorSchema(Schema):
    code = fields.String(required=True)
    message = fields.String(required=True)


class JobSchema(Schema):
    id = fields.UUID(required=True)
    effect_id = fields.UUID(required=True)
    effect = fields.String(required=True)
    video_id = fields.UUID(required=True, allow_none=True)
    status = fields.String(required=True, validate=validate.OneOf([*JobStatus]))
    progress = fields.Float(required=True, metadata={"minimum": 0, "maximum": 1})
    queue_position = fields.Integer(required=True, allow_none=True)
    eta_seconds = fields.Float(required=True, allow_none=True)
    price_tokens = fields.Integer(required=True)
    refunded = fields.Boolean(required=True)
    attempts = fields.Integer(required=True)
    outputs = fields.List(fields.Nested(OutputSchema), required=True)
    error = fields.Nested(ErrorSchema, required=True, allow_none=True)
    created_at = fields.String(required=True)
    started_at = fields.String(required=True, allow_none=True)
    completed_at = fields.String(required=True, allow_none=True)


class EventSchema(Schema):
    """As `text/event-stream` has it; `data` is the whole job as JSON."""

    id = fields.String(required=True)
    event = fields.String(required=True, validate=validate.OneOf(["status", "progress"]))
    data = fields.String(required=True)


class JobQuery(PageQuery):
    status = fields.String(load_default=None, validate=validate.OneOf([*JobStatus]))


# A job is noted as queued a moment after it is (tasks/submission.py).
SHOWN_AS = {JobStatus.QUEUED: (JobStatus.SUBMITTING, JobStatus.QUEUED)}


def shape(job: Job, waiting: queue_view.Place | None = None) -> dict[str, Any]:
    error = {"code": job.error_code, "message": job.error_message} if job.error_code else None
    place = waiting or queue_view.NOWHERE
    status = job.status
    if status == JobStatus.SUBMITTING and waiting is not None:
        status = JobStatus.QUEUED  # its dispatch is there; only the note of it is under way
    return {
        "id": job.id,
        "effect_id": job.effect_id,
        "effect": job.effect_slug,
        "video_id": job.video_id,
        "status": status,
        "progress": 1.0 if job.status == JobStatus.COMPLETED else place.progress,
        "queue_position": place.position,
        "eta_seconds": place.eta_seconds,
        "price_tokens": job.price_tokens,
        "refunded": job.refunded_at is not None,
        "attempts": place.attempts,
        "outputs": [output_shape(o.file) for o in job.outputs if o.file.deleted_at is None],
        "error": error,
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "completed_at": iso(job.completed_at),
    }


def shapes(found: list[Job]) -> list[dict[str, Any]]:
    places = queue_view.places(backend(), found)
    return [shape(job, places.get(job.id)) for job in found]


@blueprint.post("")
@blueprint.arguments(NewJobSchema())
@blueprint.response(201, JobSchema, description="Ordered and paid for.")
@blueprint.alt_response(200, schema=JobSchema, description="The job this key ordered before.")
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(429, "TOO_MANY_REQUESTS")
@blueprint.doc(
    parameters=[{"in": "header", "name": "Idempotency-Key", "schema": {"type": "string"}}]
)
def submit(new: dict[str, Any]) -> Any:
    """Order a job"""
    who = principal()
    submitted = submission.submit(
        backend(),
        submission.Request(
            tenant_id=who.tenant_id,
            user_id=who.user_id,
            effect=new["effect_id"],
            video_id=new["video_id"],
            inputs=new["inputs"],
            idempotency_key=_idempotency_key(new["idempotency_key"]),
        ),
    )
    if submitted.is_new:
        return jsonify(shape(submitted.job)), 201
    return shapes([submitted.job])[0], 200


def _idempotency_key(in_body: str | None) -> str:
    in_header = request.headers.get("Idempotency-Key", "").strip().strip('"') or None
    if in_body and in_header and in_body != in_header:
        raise InvalidInput.field("idempotency_key", "The body and the header say different keys.")
    key = in_body or in_header
    if not key or len(key) > 200:
        raise InvalidInput.field(
            "idempotency_key", "Send a key of 1 to 200 characters, new for each new order."
        )
    refuse_unstorable(key, "idempotency_key")
    return key


@blueprint.get("")
@blueprint.arguments(JobQuery, location="query")
@blueprint.response(200, page_of(JobSchema))
def list_jobs(query: dict[str, Any]) -> dict[str, Any]:
    """Your jobs, newest first"""
    status = query.pop("status")
    wanted = select(Job).where(Job.user_id == principal().user_id)
    if status:
        wanted = wanted.where(Job.status.in_(SHOWN_AS.get(status, (status,))))
    with backend().databases.tenant(principal().tenant_id) as session:
        found, cursor = page(
            session, wanted, newest=(Job.created_at, Job.id), scope=f"jobs:{status}", **query
        )
    return {"items": shapes(list(found)), "next_cursor": cursor}


@blueprint.get("/<uuid:job_id>")
@blueprint.response(200, JobSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def show(job_id: UUID) -> dict[str, Any]:
    """One job"""
    return shapes([_own_job(job_id)])[0]


@blueprint.post("/<uuid:job_id>/cancel")
@blueprint.response(200, JobSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def cancel(job_id: UUID) -> dict[str, Any]:
    """Cancel a job that has not ended, and get its tokens back. May be repeated."""
    _own_job(job_id)
    who = principal()
    job = outcomes.cancel(backend(), who.tenant_id, job_id, actor=f"user:{who.user_id}")
    return shapes([job])[0]


@blueprint.get("/<uuid:job_id>/events")
@blueprint.response(200, EventSchema, content_type="text/event-stream")
@blueprint.alt_response(204, description="It has ended, and you have its last event.")
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(429, "TOO_MANY_REQUESTS")
@blueprint.doc(parameters=[{"in": "header", "name": "Last-Event-ID", "schema": {"type": "string"}}])
def events(job_id: UUID) -> Response:
    """Watch a job: each event is the whole job; `status` when that changes, else `progress`"""
    job = _own_job(job_id)
    event = live().job_event(job, queue_view.places(backend(), [job]).get(job.id))
    return live().answer(JobTopic(job.tenant_id, job.id), event, owner=principal().user_id)


def _own_job(job_id: UUID) -> Job:
    logs.bind(job_id=job_id)
    with backend().databases.tenant(principal().tenant_id) as session:
        return jobs.get(session, job_id, user_id=principal().user_id)
