"""For administrators: jobs that were given up, to be ordered again or laid to rest."""

from http import HTTPStatus
from typing import Any
from uuid import UUID

from marshmallow import Schema, fields, validate

from models import dead_letters
from models.dead_letters import DeadLetter, DeadLetterStatus
from tasks import dispatch_list, redrive
from tasks.dispatch_list import ShownLetter
from webapp.api.admin import actor
from webapp.api.admin_dispatches import FLEET
from webapp.auth import let_admins_in
from webapp.context import backend
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of
from webapp.shapes import brief, iso

blueprint = let_admins_in(
    ApiBlueprint(
        "admin-dead-letters", __name__, url_prefix="/api/admin/dead-letters", description=__doc__
    )
)


class DeadLetterSchema(Schema):
    id = fields.UUID(required=True)
    status = fields.String(required=True, validate=validate.OneOf([*DeadLetterStatus]))
    reason = fields.String(
        required=True, metadata={"description": "`attempts_exhausted`, `provider_lost`, …"}
    )
    error = fields.String(
        required=True, allow_none=True, metadata={"description": "In lists its beginning."}
    )
    dispatch_id = fields.UUID(required=True)
    job_id = fields.UUID(required=True)
    tenant_id = fields.UUID(required=True)
    user_id = fields.UUID(required=True)
    workflow = fields.String(required=True)
    fleet = fields.String(required=True)
    stage = fields.String(required=True)
    attempts = fields.Integer(required=True)
    redriven_job_id = fields.UUID(required=True, allow_none=True)
    created_at = fields.String(required=True)
    resolved_at = fields.String(required=True, allow_none=True)
    resolved_by = fields.String(required=True, allow_none=True)


class TrySchema(Schema):
    attempt = fields.Integer(required=True)
    worker_id = fields.String(required=True, allow_none=True)
    began_at = fields.String(required=True)
    ended_at = fields.String(required=True, allow_none=True)
    ending = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "`fail`, `retry`, `requeue`, `silent`, …"},
    )
    error = fields.String(required=True, allow_none=True)


class WholeDeadLetterSchema(DeadLetterSchema):
    trace = fields.String(required=True, allow_none=True)
    history = fields.List(
        fields.Nested(TrySchema),
        required=True,
        metadata={"description": "Its tries, oldest first."},
    )


class DeadLettersQuery(PageQuery):
    status = fields.String(load_default=None, validate=validate.OneOf([*DeadLetterStatus]))
    fleet = fields.String(load_default=None, **FLEET)
    tenant = fields.UUID(load_default=None)


class DiscardSchema(Schema):
    note = fields.String(
        load_default=None,
        validate=validate.Length(max=500),
        metadata={"example": "The outage of Tuesday"},
    )


def shape(shown: ShownLetter) -> dict[str, Any]:
    letter, dispatch = shown.letter, shown.about.dispatch
    return {
        "id": letter.id,
        "status": letter.status,
        "reason": letter.reason,
        "error": letter.error,
        "dispatch_id": dispatch.id,
        "job_id": dispatch.tenant_job_id,
        "tenant_id": dispatch.tenant_id,
        "user_id": dispatch.user_id,
        "workflow": shown.about.workflow,
        "fleet": shown.about.fleet.slug,
        "stage": shown.about.fleet.stage,
        "attempts": dispatch.attempts,
        "redriven_job_id": letter.redriven_job_id,
        "created_at": iso(letter.created_at),
        "resolved_at": iso(letter.resolved_at),
        "resolved_by": letter.resolved_by,
        "trace": letter.trace,
        "history": letter.history,
    }


def in_list(shown: ShownLetter) -> dict[str, Any]:
    whole = shape(shown)
    del whole["trace"], whole["history"]
    return whole | {"error": brief(whole["error"])}


def _shape(letter: DeadLetter) -> dict[str, Any]:
    with backend().databases.central(read_only=True) as session:
        [shown] = dispatch_list.letters_shown(session, [letter])
    return shape(shown)


@blueprint.get("")
@blueprint.arguments(DeadLettersQuery, location="query")
@blueprint.response(200, page_of(DeadLetterSchema))
def list_dead_letters(query: dict[str, Any]) -> dict[str, Any]:
    """Jobs that were given up, newest first"""
    asked = {name: query.pop(name) for name in ("status", "fleet")}
    asked["tenant_id"] = query.pop("tenant")
    with backend().databases.central(read_only=True) as session:
        found, cursor = page(
            session,
            dispatch_list.letters_wanted(session, **asked),
            newest=(DeadLetter.created_at, DeadLetter.id),
            scope=f"admin-dead-letters {asked}",
            **query,
        )
        shown = dispatch_list.letters_shown(session, found)
    return {"items": [in_list(one) for one in shown], "next_cursor": cursor}


@blueprint.get("/<uuid:letter_id>")
@blueprint.response(200, WholeDeadLetterSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def show_dead_letter(letter_id: UUID) -> dict[str, Any]:
    """One, with its trace and its tries"""
    with backend().databases.central(read_only=True) as session:
        letter = dead_letters.get(session, letter_id)
    return _shape(letter)


@blueprint.post("/<uuid:letter_id>/redrive")
@blueprint.response(200, WholeDeadLetterSchema)
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
@blueprint.alt_response(422, HTTPStatus(422).name)
def redrive_dead_letter(letter_id: UUID) -> dict[str, Any]:
    """Order its work again, as a new job at the same price. Again: the same new job"""
    return _shape(redrive.redrive(backend(), letter_id, actor=actor()))


@blueprint.post("/<uuid:letter_id>/discard")
@blueprint.arguments(DiscardSchema)
@blueprint.response(200, WholeDeadLetterSchema)
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
def discard_dead_letter(given: dict[str, Any], letter_id: UUID) -> dict[str, Any]:
    """Nothing is to be done about it. May be repeated"""
    return _shape(redrive.discard(backend(), letter_id, actor=actor(), **given))
