"""For administrators: how everything stands, live."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

from flask import Response
from marshmallow import Schema, fields, validate

from models.fleet_figures import FleetFigures
from tasks import overview
from webapp.api import admin_dispatches
from webapp.api.admin_audit import AuditSchema
from webapp.auth import let_admins_in
from webapp.context import backend, live, principal
from webapp.live import Overview
from webapp.openapi import ApiBlueprint
from webapp.streams import Event

NAME = "overview"

blueprint = let_admins_in(
    ApiBlueprint("admin-events", __name__, url_prefix="/api/admin/events", description=__doc__)
)


class OverviewEventSchema(Schema):
    """As `text/event-stream` has it; `data` is JSON: `fleets`, `running`, `latest`."""

    id = fields.String(required=True)
    event = fields.String(required=True, validate=validate.Equal(NAME))
    data = fields.String(required=True)


def event() -> Event:
    seen = overview.of_stage(backend())
    shape = {
        "fleets": [_fleet(fleet) for fleet in seen.fleets],
        "running": [admin_dispatches.in_list(one) for one in seen.running],
        "latest": AuditSchema(many=True).dump(seen.latest),
    }
    return Event(
        id=_state(shape), data=json.dumps(shape, default=str), name=NAME, name_while_same=NAME
    )


def _fleet(fleet: FleetFigures) -> dict[str, Any]:
    derived = {
        "queue_depth": fleet.queue_depth,
        "backlog_per_instance": fleet.backlog_per_instance,
        "error_rate": fleet.error_rate,
    }
    return asdict(fleet) | derived


def _state(shape: dict[str, Any]) -> str:
    """What makes it another than it was. That time goes by does not."""
    fleets = [fleet | {"oldest_waiting_seconds": None} for fleet in shape["fleets"]]
    counted = json.dumps(shape | {"fleets": fleets}, default=str)
    return hashlib.sha256(counted.encode()).hexdigest()[:16]


@blueprint.get("")
@blueprint.response(200, OverviewEventSchema, content_type="text/event-stream")
@blueprint.alt_response(429, "TOO_MANY_REQUESTS")
@blueprint.doc(parameters=[{"in": "header", "name": "Last-Event-ID", "schema": {"type": "string"}}])
def events() -> Response:
    """Watch fleets, what runs and what happens; each event is all of it, at most one a second"""
    return live().answer(Overview(), event(), owner=principal().user_id)
