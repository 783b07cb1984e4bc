"""For administrators: who did what, when."""

from typing import Any

from marshmallow import Schema, fields, validate

from models import audit
from models.audit import AuditLog
from webapp.auth import let_admins_in
from webapp.context import backend
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of
from webapp.shapes import Time

blueprint = let_admins_in(
    ApiBlueprint("admin-audit", __name__, url_prefix="/api/admin/audit", description=__doc__)
)

WORD = validate.Length(1, 200)


class AuditSchema(Schema):
    id = fields.UUID(required=True)
    at = Time(required=True)
    event = fields.String(required=True)
    actor = fields.String(
        required=True, metadata={"description": "`user:ID`, `worker:NAME`, `system` or `cli`."}
    )
    tenant_id = fields.UUID(required=True, allow_none=True)
    worker_id = fields.String(required=True, allow_none=True)
    dispatch_id = fields.UUID(required=True, allow_none=True)
    details = fields.Dict(keys=fields.String(), required=True)


class AuditQuery(PageQuery):
    event = fields.String(
        load_default=None, validate=WORD, metadata={"description": "E.g. `wallet.credit`."}
    )
    actor = fields.String(
        load_default=None, validate=WORD, metadata={"description": "E.g. `cli`, `user:ID`."}
    )
    dispatch = fields.UUID(load_default=None)
    worker = fields.String(load_default=None, validate=WORD)
    tenant = fields.UUID(load_default=None)


@blueprint.get("")
@blueprint.arguments(AuditQuery, location="query")
@blueprint.response(200, page_of(AuditSchema))
def list_audit(query: dict[str, Any]) -> dict[str, Any]:
    """The audit log, newest first"""
    asked = {
        "event": query.pop("event"),
        "actor": query.pop("actor"),
        "dispatch_id": query.pop("dispatch"),
        "worker_id": query.pop("worker"),
        "tenant_id": query.pop("tenant"),
    }
    with backend().databases.central(read_only=True) as session:
        found, cursor = page(
            session,
            audit.matching(**asked),
            newest=(AuditLog.at, AuditLog.id),
            scope=f"admin-audit {asked}",
            **query,
        )
    return {"items": found, "next_cursor": cursor}
