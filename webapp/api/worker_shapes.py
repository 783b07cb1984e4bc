"""What workers send and get, field by field. What each call does is told in worker.py."""

import json
from typing import Any

from marshmallow import Schema, ValidationError, fields, validate, validates_schema

from models.dispatches import DispatchStatus
from models.effects import Provider
from models.jobs import JobStatus
from models.object_paths import EXTENSIONS

MOST_OUTPUTS = 100
_DEEPEST, _LONGEST = 8, 20_000

# `$` alone would let a newline through, and \Z is unknown to other languages' patterns.
_END = r"$(?!\n)"
#: A worker's name becomes part of log lines, and of keys in Redis.
NAME = rf"^[A-Za-z0-9][A-Za-z0-9._-]*{_END}"
CODE = rf"^[a-z][a-z0-9_]{{0,63}}{_END}"
SHA256 = rf"^[0-9a-f]{{64}}{_END}"


def example(value: Any, description: str | None = None) -> dict[str, Any]:
    return {"example": value} | ({"description": description} if description else {})


def small_object(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        members = [m for one in level for m in (one.values() if isinstance(one, dict) else one)]
        level = [member for member in members if isinstance(member, dict | list)]
    if level:
        raise ValidationError("Must not be nested so deeply.")
    if len(json.dumps(value)) > _LONGEST:
        raise ValidationError("Must be smaller.")


class ProvidersSchema(Schema):
    providers = fields.List(
        fields.String(validate=validate.OneOf([*Provider])),
        load_default=lambda: [Provider.SELF_HOSTED.value],
        validate=validate.Length(1, 3),
        metadata=example(["self_hosted"], "What it can run jobs with."),
    )
    max_concurrency = fields.Integer(
        load_default=1, validate=validate.Range(1, 64), metadata=example(1)
    )
    capabilities = fields.Dict(
        keys=fields.String(),
        load_default=dict,
        validate=small_object,
        metadata=example({"gpu": "L4", "vram_gb": 24}, "Whatever operators want to see."),
    )


class RegisterSchema(ProvidersSchema):
    worker_id = fields.String(
        required=True,
        validate=[validate.Length(1, 100), validate.Regexp(NAME)],
        metadata=example("i-0abc1234def567890", "Its own name; the instance id where it has one."),
    )
    fleet_slug = fields.String(
        required=True, validate=validate.Length(1, 100), metadata=example("gpu-default")
    )
    stage = fields.String(
        required=True, validate=validate.Length(1, 50), metadata=example("production")
    )


class RegisteredSchema(Schema):
    worker_id = fields.String(required=True)
    token = fields.String(required=True, metadata={"description": "Shown once. 64 characters."})
    queue = fields.String(required=True, metadata={"description": "Where its tickets arrive."})
    workflows_assigned = fields.List(fields.String(), required=True)
    heartbeat_seconds = fields.Integer(required=True)
    lease_seconds = fields.Integer(required=True)


class PollSchema(ProvidersSchema):
    current_load = fields.Integer(
        load_default=0, validate=validate.Range(0, 64), metadata=example(0, "Jobs it has now.")
    )
    holds_nothing = fields.Boolean(
        load_default=False,
        metadata=example(
            True, "It holds no lease: one whose answer it never got is given to it again."
        ),
    )


class AssetSchema(Schema):
    placeholder = fields.String(
        required=True, metadata={"description": "To be replaced in the graph by the file's name."}
    )
    url = fields.String(required=True)
    content_hash = fields.String(required=True, allow_none=True)
    filename = fields.String(required=True)
    mime_type = fields.String(required=True)
    is_primary_input = fields.Boolean(required=True)


class InputPayloadSchema(Schema):
    graph = fields.Dict(
        keys=fields.String(), required=True, metadata={"description": "ComfyUI's API format."}
    )
    output_node_id = fields.String(required=True, allow_none=True)
    assets = fields.List(fields.Nested(AssetSchema), required=True)


class LeasedSchema(Schema):
    """A job with everything it takes to run it."""

    dispatch_id = fields.UUID(required=True)
    lease_token = fields.UUID(required=True, metadata={"description": "Goes with every report."})
    lease_expires_at = fields.String(required=True)
    job_id = fields.UUID(required=True)
    provider = fields.String(required=True, validate=validate.OneOf([*Provider]))
    workflow = fields.String(required=True)
    attempt = fields.Integer(required=True, metadata={"minimum": 1})
    deadline_seconds = fields.Integer(required=True)
    input_url = fields.String(
        required=True, allow_none=True, metadata={"description": "Of the primary asset."}
    )
    output_url = fields.String(required=True)
    output_headers = fields.Dict(keys=fields.String(), values=fields.String(), required=True)
    input_payload = fields.Nested(InputPayloadSchema, required=True)
    trace = fields.String(
        required=True,
        allow_none=True,
        metadata=example(
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "The trace of the order, as W3C writes it. Send it as `traceparent` with each call.",
        ),
    )


class MadeSchema(Schema):
    """A file that the job made."""

    name = fields.String(
        required=True, validate=validate.Length(1, 200), metadata=example("out_00001_.png")
    )
    mime_type = fields.String(
        required=True, validate=validate.OneOf([*EXTENSIONS]), metadata=example("image/png")
    )
    size_bytes = fields.Integer(
        required=True, strict=True, validate=validate.Range(0, 2**53), metadata=example(123_456)
    )
    sha256 = fields.String(
        load_default=None,
        allow_none=True,
        validate=validate.Regexp(SHA256),
        metadata=example("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
    )


class LeaseSchema(Schema):
    dispatch_id = fields.UUID(required=True)
    lease_token = fields.UUID(required=True)


class HeartbeatSchema(Schema):
    dispatch_id = fields.UUID(load_default=None, allow_none=True)
    lease_token = fields.UUID(load_default=None, allow_none=True)
    progress = fields.Float(
        load_default=None, allow_none=True, validate=validate.Range(0, 1), metadata=example(0.4)
    )
    current_node = fields.String(
        load_default=None,
        allow_none=True,
        validate=validate.Length(max=200),
        metadata=example("KSampler"),
    )
    outputs = fields.List(
        fields.Nested(MadeSchema),
        load_default=None,
        allow_none=True,
        validate=validate.Length(max=MOST_OUTPUTS),
        metadata={"description": "To get an address for each, that pins type and length."},
    )

    @validates_schema
    def whole_lease_or_none(self, told: dict[str, Any], **_: Any) -> None:
        """Half a lease would count as idle, and the job would be lost without a word."""
        for name, other in (("lease_token", "dispatch_id"), ("dispatch_id", "lease_token")):
            if told.get(name) is None and told.get(other) is not None:
                raise ValidationError(f"Goes together with {other}.", name)


class OutputAddressSchema(Schema):
    name = fields.String(required=True)
    url = fields.String(required=True)
    headers = fields.Dict(keys=fields.String(), values=fields.String(), required=True)


class HeartbeatAnswerSchema(Schema):
    lease_expires_at = fields.String(allow_none=True)
    cancel_requested = fields.Boolean(required=True)
    draining = fields.Boolean(required=True)
    next_heartbeat_seconds = fields.Integer(required=True, metadata={"minimum": 1})
    output_url = fields.String(metadata={"description": "Fresh, while a job is held."})
    output_headers = fields.Dict(keys=fields.String(), values=fields.String())
    uploads = fields.List(
        fields.Nested(OutputAddressSchema), metadata={"description": "In the order of `outputs`."}
    )


class CompleteSchema(LeaseSchema):
    outputs = fields.List(
        fields.Nested(MadeSchema), required=True, validate=validate.Length(1, MOST_OUTPUTS)
    )
    provider_job_id = fields.String(
        load_default=None,
        allow_none=True,
        validate=validate.Length(max=200),
        metadata=example("8e03978e-40d5-43e8-bc93-6894a57f9324"),
    )
    timings = fields.Dict(
        keys=fields.String(validate=validate.Length(max=100)),
        values=fields.Float(),
        load_default=None,
        allow_none=True,
        validate=validate.Length(max=20),
        metadata=example({"run_seconds": 4.2}),
    )


class FailSchema(LeaseSchema):
    error = fields.String(
        required=True, metadata=example("Out of memory", "ComfyUI's JSON, a traceback, a line.")
    )
    trace = fields.String(
        load_default=None, allow_none=True, metadata=example("Traceback …", "For operators.")
    )
    error_code = fields.String(
        load_default=None,
        allow_none=True,
        validate=validate.Regexp(CODE),
        metadata=example("execution_failed"),
    )
    retryable = fields.Boolean(
        load_default=False, metadata=example(False, "The job is not to blame.")
    )


class RequeueSchema(LeaseSchema):
    reason = fields.String(
        required=True, validate=validate.Length(1, 500), metadata=example("spot interruption")
    )


class StatusSchema(Schema):
    """How the job stands after the report."""

    status = fields.String(
        required=True, validate=validate.OneOf(sorted({*JobStatus, *DispatchStatus}))
    )
