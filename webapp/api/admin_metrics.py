"""For administrators: the figures behind /metrics."""

from dataclasses import asdict
from typing import Any

from marshmallow import Schema, fields

from models import fleet_figures
from models.errors import DependencyUnavailable
from tasks.figures import Figures
from webapp.auth import let_admins_in
from webapp.context import figures
from webapp.exposition import TOKENS
from webapp.openapi import ApiBlueprint
from webapp.shapes import iso

blueprint = let_admins_in(
    ApiBlueprint("admin-metrics", __name__, url_prefix="/api/admin/metrics", description=__doc__)
)


def told(description: str) -> dict[str, Any]:
    return {"metadata": {"description": description}, "required": True}


class FleetSumsSchema(Schema):
    queue_depth = fields.Integer(**told("Jobs that wait or run."))
    waiting = fields.Integer(**told("Jobs that wait, also those that back off."))
    running = fields.Integer(**told("Jobs that a worker holds."))
    oldest_waiting_seconds = fields.Float(**told("Since the oldest that waits was ordered."))
    backlog_per_instance = fields.Float(**told("`queue_depth` for each active worker."))
    active_workers = fields.Integer(**told("Heard of in the last 5 minutes."))
    available_capacity = fields.Integer(**told("Jobs that they could take at once."))
    completed = fields.Integer(**told("Jobs, in the last 5 minutes."))
    failed = fields.Integer(**told("Jobs, in the last 5 minutes."))
    error_rate = fields.Float(**told("The share of `failed` in both."))
    lease_expired_count = fields.Integer(**told("In the last 5 minutes."))
    spot_interruption_count = fields.Integer(**told("In the last 5 minutes."))
    dead_letters_open = fields.Integer(**told("Wait for a person."))


class FleetMetricsSchema(FleetSumsSchema):
    slug = fields.String(required=True, metadata={"example": "gpu-default"})
    is_active = fields.Boolean(required=True)
    job_processing_p50 = fields.Float(
        allow_none=True, **told("Median seconds of jobs completed in the last 10 minutes.")
    )


class SubmissionsSchema(Schema):
    count = fields.Integer(**told("Since counting began."))
    latency_mean_ms = fields.Float(
        allow_none=True, **told("From an order until its dispatch was there.")
    )


TokensSchema = Schema.from_dict(
    {movement: fields.Integer(required=True) for movement in TOKENS}, name="TokensMovedSchema"
)


class WebhooksSchema(Schema):
    pending = fields.Integer(**told("To be sent, now or later."))
    oldest_due_seconds = fields.Float(**told("How long the one due for longest has been due."))
    failed = fields.Integer(**told("Given up, and still kept."))
    delivered = fields.Integer(**told("Since counting began."))
    endpoints_failing = fields.Integer(**told("In use, with nothing but failures lately."))


class FinishedSchema(Schema):
    task = fields.String(required=True, metadata={"example": "reconcile"})
    finished_at = fields.String(required=True, allow_none=True)
    is_late = fields.Boolean(required=True)


class MetricsSchema(Schema):
    at = fields.String(**told("When the figures were read, a few seconds ago."))
    stage = fields.String(required=True)
    fleets = fields.List(fields.Nested(FleetMetricsSchema), required=True)
    totals = fields.Nested(FleetSumsSchema, **told("Of all fleets together."))
    submissions = fields.Nested(SubmissionsSchema, required=True)
    orphaned_jobs_detected = fields.Integer(**told("Refunded, since counting began."))
    runpod_submission_failures = fields.Integer(**told("Since counting began."))
    webhooks = fields.Nested(WebhooksSchema, required=True)
    tokens = fields.Nested(TokensSchema, **told("Moved, by the ledgers of all pools."))
    ledger_differences = fields.Dict(
        keys=fields.String(),
        values=fields.Integer(),
        **told("By pool: what wallets hold more than their ledger says. 0 is right."),
    )
    counted_at = fields.String(
        allow_none=True, **told("When the control worker last counted what is a sum here.")
    )
    cloudwatch_published_at = fields.String(
        allow_none=True, **told("When CloudWatch last took figures.")
    )
    control_tasks = fields.List(fields.Nested(FinishedSchema), required=True)


@blueprint.get("")
@blueprint.response(200, MetricsSchema)
@blueprint.alt_response(503, "SERVICE_UNAVAILABLE")
def metrics() -> dict[str, Any]:
    """How fleets, orders, money and control tasks stand"""
    found = figures().get()
    if found is None:
        raise DependencyUnavailable(
            "The figures can't be read at the moment.", retry_after_seconds=5
        )
    return shape(found)


def shape(found: Figures) -> dict[str, Any]:
    totals = found.totals
    submissions = int(totals.get("submissions", 0))
    milliseconds = totals.get("submission_milliseconds", 0)
    return {
        "at": iso(found.at),
        "stage": found.stage,
        "fleets": found.fleets,
        "totals": fleet_figures.together(found.fleets, stage=found.stage),
        "submissions": {
            "count": submissions,
            "latency_mean_ms": milliseconds / submissions if submissions else None,
        },
        "orphaned_jobs_detected": totals.get("orphans", 0),
        "runpod_submission_failures": totals.get("runpod_failures", 0),
        "webhooks": asdict(found.webhooks) | {"delivered": totals.get("webhooks_delivered", 0)},
        "tokens": {movement: totals.get(movement, 0) for movement in TOKENS},
        "ledger_differences": found.differences,
        "counted_at": iso(found.counted_at),
        "cloudwatch_published_at": iso(found.published_at),
        "control_tasks": [
            {
                "task": task["task"],
                "finished_at": iso(task["finished_at"]),
                "is_late": task["is_late"],
            }
            for task in found.control
        ],
    }
