"""Be told when something has happened, instead of asking: docs/webhooks.md is for receivers."""

from typing import Any
from uuid import UUID

from marshmallow import Schema, fields, validate
from sqlalchemy import select

from models import webhooks
from models.messages import TEST, Event
from models.webhooks import DeliveryStatus, WebhookDelivery, WebhookEndpoint
from tasks import webhook_endpoints
from webapp.auth import let_users_in
from webapp.context import backend, principal
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of
from webapp.shapes import Time

blueprint = let_users_in(
    ApiBlueprint(
        "webhook-endpoints", __name__, url_prefix="/api/webhook-endpoints", description=__doc__
    )
)

EXAMPLE_URL = "https://hooks.example.com/comfyfleet"


def events(**given: Any) -> "fields.List[Any]":
    known = fields.String(validate=validate.OneOf([*Event]))
    return fields.List(
        known,
        validate=validate.Length(1, 20),
        metadata={"example": ["job.completed", "job.failed"]},
        **given,
    )


class NewEndpointSchema(Schema):
    url = fields.String(
        required=True, validate=validate.Length(1, 10_000), metadata={"example": EXAMPLE_URL}
    )
    events = events(required=True)


class EndpointChangeSchema(Schema):
    url = fields.String(validate=validate.Length(1, 10_000), metadata={"example": EXAMPLE_URL})
    events = events()
    is_active = fields.Boolean(
        truthy={True},
        falsy={False},
        metadata={"description": "Switching it on forgets what went wrong before."},
    )


class EndpointSchema(Schema):
    id = fields.UUID(required=True)
    url = fields.String(required=True)
    events = fields.List(fields.String(validate=validate.OneOf([*Event])), required=True)
    is_active = fields.Boolean(required=True)
    disabled_reason = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "Why we switched it off, if we did."},
    )
    failing_since = Time(required=True, allow_none=True)
    previous_secret_until = Time(
        required=True, allow_none=True, metadata={"description": "Until then two secrets sign."}
    )
    created_at = Time(required=True)


class EndpointWithSecretSchema(EndpointSchema):
    secret = fields.String(required=True, metadata={"description": "Shown only here."})


class DeliveryTrySchema(Schema):
    at = fields.String(required=True)
    status = fields.Integer(required=True, allow_none=True)
    milliseconds = fields.Integer(required=True)
    error = fields.String(required=True, allow_none=True)


class DeliverySchema(Schema):
    id = fields.UUID(required=True)
    event = fields.String(required=True, validate=validate.OneOf([*Event, TEST]))
    message_id = fields.String(
        required=True,
        metadata={"description": "Sent as `webhook-id`; every try and replay has the same."},
    )
    payload = fields.Dict(required=True)
    status = fields.String(required=True, validate=validate.OneOf([*DeliveryStatus]))
    attempts = fields.Integer(required=True)
    next_attempt_at = Time(required=True, allow_none=True, attribute="due_at")
    response_status = fields.Integer(required=True, allow_none=True)
    error = fields.String(required=True, allow_none=True, attribute="last_error")
    log = fields.List(fields.Nested(DeliveryTrySchema), required=True)
    created_at = Time(required=True)
    delivered_at = Time(required=True, allow_none=True)


class DeliveryQuery(PageQuery):
    status = fields.String(load_default=None, validate=validate.OneOf([*DeliveryStatus]))


@blueprint.post("")
@blueprint.arguments(NewEndpointSchema)
@blueprint.response(201, EndpointWithSecretSchema, description="Keep the secret.")
@blueprint.alt_response(409, "CONFLICT")
def create(new: dict[str, Any]) -> WebhookEndpoint:
    """Have your tenant's events sent to an address"""
    return webhook_endpoints.create(backend(), principal(), **new)


@blueprint.get("")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, page_of(EndpointSchema))
def list_endpoints(query: dict[str, Any]) -> dict[str, Any]:
    """Your tenant's endpoints, newest first"""
    with backend().databases.central(read_only=True) as session:
        found, cursor = page(
            session,
            select(WebhookEndpoint).where(WebhookEndpoint.tenant_id == principal().tenant_id),
            newest=(WebhookEndpoint.created_at, WebhookEndpoint.id),
            scope="webhook-endpoints",
            **query,
        )
    return {"items": found, "next_cursor": cursor}


@blueprint.get("/<uuid:endpoint_id>")
@blueprint.response(200, EndpointSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def show(endpoint_id: UUID) -> WebhookEndpoint:
    """One endpoint"""
    return _own(endpoint_id)


@blueprint.patch("/<uuid:endpoint_id>")
@blueprint.arguments(EndpointChangeSchema)
@blueprint.response(200, EndpointSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def change(changed: dict[str, Any], endpoint_id: UUID) -> WebhookEndpoint:
    """Change its address or events, or switch it on or off"""
    return webhook_endpoints.change(backend(), principal(), endpoint_id, **changed)


@blueprint.delete("/<uuid:endpoint_id>")
@blueprint.response(204)
@blueprint.alt_response(404, "NOT_FOUND")
def remove(endpoint_id: UUID) -> None:
    """Remove an endpoint and all its deliveries"""
    webhook_endpoints.remove(backend(), principal(), endpoint_id)


@blueprint.post("/<uuid:endpoint_id>/rotate-secret")
@blueprint.response(200, EndpointWithSecretSchema, description="Keep the secret.")
@blueprint.alt_response(404, "NOT_FOUND")
def rotate_secret(endpoint_id: UUID) -> WebhookEndpoint:
    """A new secret; for a while the old one signs too"""
    return webhook_endpoints.rotate_secret(backend(), principal(), endpoint_id)


@blueprint.post("/<uuid:endpoint_id>/test")
@blueprint.response(201, DeliverySchema)
@blueprint.alt_response(200, schema=DeliverySchema, description="One waited; it is due now.")
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
def test(endpoint_id: UUID) -> Any:
    """Have an `endpoint.test` sent at once"""
    delivery, is_new = webhook_endpoints.test(backend(), principal(), endpoint_id)
    return delivery, 201 if is_new else 200


@blueprint.get("/<uuid:endpoint_id>/deliveries")
@blueprint.arguments(DeliveryQuery, location="query")
@blueprint.response(200, page_of(DeliverySchema))
@blueprint.alt_response(404, "NOT_FOUND")
def list_deliveries(query: dict[str, Any], endpoint_id: UUID) -> dict[str, Any]:
    """What was or will be sent there, with every try, newest first"""
    status = query.pop("status")
    _own(endpoint_id)
    wanted = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id)
    with backend().databases.central(read_only=True) as session:
        found, cursor = page(
            session,
            wanted.where(WebhookDelivery.status == status) if status else wanted,
            newest=(WebhookDelivery.created_at, WebhookDelivery.id),
            scope=f"deliveries:{endpoint_id}:{status}",
            **query,
        )
    return {"items": found, "next_cursor": cursor}


@blueprint.post("/<uuid:endpoint_id>/deliveries/<uuid:delivery_id>/replay")
@blueprint.response(201, DeliverySchema)
@blueprint.alt_response(200, schema=DeliverySchema, description="It waited; it is due now.")
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
def replay(endpoint_id: UUID, delivery_id: UUID) -> Any:
    """Send a message once more, under its old `webhook-id`"""
    who = principal()
    delivery, is_new = webhook_endpoints.replay(backend(), who, endpoint_id, delivery_id)
    return delivery, 201 if is_new else 200


def _own(endpoint_id: UUID) -> WebhookEndpoint:
    with backend().databases.central(read_only=True) as session:
        return webhooks.get(session, endpoint_id, tenant_id=principal().tenant_id)
