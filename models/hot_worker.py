"""What a worker asks and says about every job, on PostgreSQL, with as little around it as
possible: the lease, the start and the good end. Its heartbeats are in hot_heartbeat.py.

Like hot_path.py, nothing is decided here. Whatever is not the ordinary case writes nothing,
returns None, and is left to the plain functions, which know the reasons. Tests compare the
rows that both ways write.

A lease, or the note that a job runs, that a crash of the database loses is taken for one that
was never given: the job is leased again. So these two do not wait for the disk. Money does.
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from models import lanes, messages
from models.base import row_id, utcnow
from models.dispatches import NOTHING_HELD, Dispatch, DispatchStatus, Lease
from models.files import File, Output
from models.hot_path import LOCK_WALLET, spell_out
from models.jobs import Job, JobStatus
from models.prepared import NAME_TENANT, NO_WAIT_FOR_DISK, Prepared, round_trip
from models.session import Databases

# What audit.record is told of the trace of a dispatch.
_TRACE = """
    jsonb_strip_nulls(jsonb_build_object('trace_id', split_part(traceparent, '-', 2)))
""".strip()

#: Of a dispatch, in the order in which `copy_of` takes them.
COLUMNS = ", ".join(Dispatch.__table__.columns.keys())

HELD = Prepared(
    "held_dispatch",
    f"""
    SELECT {COLUMNS} FROM ai_job_dispatches
    WHERE id = %(dispatch_id)s AND lease_token = %(token)s AND status = 'leased'
      AND (%(fleet_id)s IS NULL OR fleet_id = %(fleet_id)s)
    """,  # noqa: S608 - names of our own columns
    {"dispatch_id": "uuid", "token": "uuid", "fleet_id": "uuid"},
)

START = Prepared(
    "start_job",
    """
    WITH job AS (
        UPDATE ai_jobs SET status = 'processing', started_at = coalesce(started_at, %(now)s)
        WHERE id = %(job_id)s AND status IN ('submitting', 'queued', 'processing')
        RETURNING id, tenant_id, user_id, status, video_id, input_payload
    )
    SELECT job.*, file.id, file.filename, file.mime_type, file.object_key, file.content_hash
    FROM job
    LEFT JOIN videos video ON video.id = job.video_id AND video.user_id = job.user_id
        AND video.deleted_at IS NULL
    LEFT JOIN files file ON file.id = video.original_file_id
    """,
    {"job_id": "uuid", "now": "timestamptz"},
)

COMPLETE = Prepared(
    "complete_job",
    """
    WITH job AS (
        UPDATE ai_jobs SET status = 'completed', completed_at = %(now)s,
            provider_job_id = %(provider_job_id)s
        WHERE id = %(job_id)s AND status IN ('submitting', 'queued', 'processing')
        RETURNING id, tenant_id, user_id, effect_id, status, completed_at, video_id, created_at
    ), made AS (
        SELECT * FROM jsonb_to_recordset(%(outputs)s) AS made(id uuid, "position" integer,
            name text, kind text, mime_type text, size_bytes bigint, object_key text,
            content_hash text)
    ), consumed AS (
        INSERT INTO token_transactions
            (id, tenant_id, wallet_id, user_id, type, amount, job_id, created_at)
        SELECT %(entry_id)s, job.tenant_id, wallet.id, job.user_id, 'JOB_CONSUME', 0, job.id,
            %(now)s
        FROM job JOIN token_wallets wallet USING (tenant_id, user_id)
    ), stored AS (
        INSERT INTO files (id, tenant_id, user_id, filename, kind, mime_type, size_bytes,
            object_key, content_hash, status, created_at)
        SELECT made.id, job.tenant_id, job.user_id, made.name, made.kind, made.mime_type,
            made.size_bytes, made.object_key, made.content_hash, 'stored', %(now)s
        FROM job, made
    ), listed AS (
        INSERT INTO ai_job_outputs (job_id, "position", file_id, tenant_id)
        SELECT job.id, made."position", made.id, job.tenant_id FROM job, made
    ), shown AS (
        UPDATE videos SET status = 'completed', error = NULL
        FROM job WHERE videos.id = job.video_id AND videos.status <> 'expired'
          AND NOT EXISTS (SELECT 1 FROM ai_jobs newer WHERE newer.video_id = job.video_id
              AND (newer.created_at, newer.id) > (job.created_at, job.id))
    )
    SELECT id, tenant_id, effect_id, status, completed_at FROM job
    """,
    {
        "job_id": "uuid",
        "entry_id": "uuid",
        "provider_job_id": "text",
        "outputs": "jsonb",
        "now": "timestamptz",
    },
)

_FOLLOW = f"""
    WITH dispatch AS (
        UPDATE ai_job_dispatches SET status = 'completed', progress = 1.0,
            lease_expires_at = NULL, available_at = NULL, updated_at = %(now)s,
            duration_seconds = CASE WHEN status = 'leased' AND leased_at <= %(now)s
                THEN extract(epoch FROM %(now)s - leased_at) END
        WHERE id = %(dispatch_id)s AND status IN ('queued', 'leased') {{condition}}
        RETURNING id, tenant_id, tenant_job_id, attempts, duration_seconds, traceparent
    ), noted AS (
        INSERT INTO worker_audit_logs
            (id, at, event, actor, tenant_id, worker_id, dispatch_id, details)
        SELECT %(audit_id)s, %(now)s, 'job.complete', %(actor)s, tenant_id, %(worker)s, id,
            jsonb_build_object('job_id', tenant_job_id, 'attempt', attempts) || {_TRACE}
                || %(details)s
        FROM dispatch
    ), timed AS (
        UPDATE effects SET last_processing_time_seconds = dispatch.duration_seconds
        FROM dispatch WHERE effects.id = %(effect_id)s AND dispatch.duration_seconds IS NOT NULL
    )
"""  # noqa: S608 - no words of others
_FOLLOW_TYPES = {
    "dispatch_id": "uuid",
    "audit_id": "uuid",
    "effect_id": "uuid",
    "actor": "text",
    "worker": "text",
    "details": "jsonb",
    "now": "timestamptz",
}

# Most tenants have no webhooks. They pay for one look into an index, and not for a statement
# that could write to another table: that alone would cost a third more.
_UNHEARD = """
    AND NOT EXISTS (SELECT 1 FROM webhook_endpoints
        WHERE tenant_id = ai_job_dispatches.tenant_id AND is_active)
"""
FOLLOW_UNHEARD = Prepared(
    "follow_unheard",
    _FOLLOW.format(condition=_UNHEARD) + "SELECT 1 FROM dispatch",  # noqa: S608 - ours
    _FOLLOW_TYPES,
)

FOLLOW_AND_TELL = Prepared(
    "follow_and_tell",
    _FOLLOW.format(condition="")  # noqa: S608 - ours
    + """
    , listening AS MATERIALIZED (
        SELECT endpoint.id FROM dispatch JOIN webhook_endpoints endpoint USING (tenant_id)
        WHERE endpoint.is_active AND endpoint.events ? 'job.completed'
        FOR KEY SHARE OF endpoint
    ), told AS (
        INSERT INTO webhook_deliveries (id, endpoint_id, event, event_key, message_id, payload,
            status, attempts, next_attempt_at, created_at)
        SELECT gen_random_uuid(), id, 'job.completed', %(event_key)s, %(message_id)s, %(payload)s,
            'pending', 0, %(now)s, %(now)s
        FROM listening
        ON CONFLICT (endpoint_id, event_key) DO NOTHING RETURNING id
    )
    SELECT count(*) FROM told
    """,
    _FOLLOW_TYPES | {"event_key": "text", "message_id": "text", "payload": "jsonb"},
)

# Along the index of a fleet's leases: 0.2 ms with a thousand of them.
GIVE_BACK = Prepared(
    "give_back",
    f"""
    WITH given AS (
        UPDATE ai_job_dispatches SET status = 'queued', lease_token = NULL,
            lease_expires_at = NULL, worker_id = NULL, attempts = attempts - 1,
            last_error = 'Requeued: ' || %(reason)s, updated_at = %(asked_at)s
        WHERE status = 'leased' AND fleet_id = %(fleet)s AND worker_id = %(worker)s
          AND lease_expires_at > %(asked_at)s
        RETURNING id, tenant_id, tenant_job_id, attempts, traceparent
    )
    INSERT INTO worker_audit_logs
        (id, at, event, actor, tenant_id, worker_id, dispatch_id, details)
    SELECT gen_random_uuid(), %(asked_at)s, 'job.requeue', 'worker:' || %(worker)s, tenant_id,
        %(worker)s, id, jsonb_build_object('job_id', tenant_job_id, 'attempt', attempts,
            'reason', %(reason)s) || {_TRACE}
    FROM given
    """,  # noqa: S608 - no words of others
    {"fleet": "uuid", "worker": "text", "reason": "text", "asked_at": "timestamptz"},
)

_NOTE_LEASE = f"""
    WITH leased AS ({{lease}}), noted AS (
        INSERT INTO worker_audit_logs
            (id, at, event, actor, tenant_id, worker_id, dispatch_id, details)
        SELECT %(audit_id)s, leased_at, 'job.lease', 'worker:' || worker_id, tenant_id,
            worker_id, id, jsonb_build_object('attempt', attempts) || {_TRACE}
        FROM leased
    ), lost AS (
        INSERT INTO worker_audit_logs
            (id, at, event, actor, tenant_id, worker_id, dispatch_id, details)
        SELECT gen_random_uuid(), leased_at - interval '1 microsecond', 'job.lease_expired',
            'system', tenant_id, NULL, id,
            jsonb_build_object('job_id', tenant_job_id, 'attempt', attempts - 1) || {_TRACE}
        FROM leased WHERE lease_lost_at = leased_at
    ) SELECT * FROM leased
"""  # noqa: S608 - no words of others


def held(databases: Databases, lease: Lease) -> Dispatch | None:
    """The dispatch of a lease that is good; None if anything is to be said about it. A copy."""
    values = {"dispatch_id": lease.dispatch_id, "token": lease.token, "fleet_id": lease.fleet_id}
    return copy_of(round_trip(databases.engine("central"), HELD, values=values))


def copy_of(row: tuple[Any, ...] | None) -> Dispatch | None:
    if row is None:
        return None
    return Dispatch(**dict(zip(Dispatch.__table__.columns.keys(), row, strict=True)))


def lease(
    databases: Databases,
    *,
    fleet_id: UUID,
    providers: list[str],
    workflow_ids: list[UUID],
    worker_id: str,
    lease_seconds: int,
    holds_nothing: bool = False,
) -> Dispatch | None:
    """The same as lanes.lease with its audit row, in a transaction of its own. A copy.

    `holds_nothing`: after dispatches.give_back, with its audit rows.
    """
    if not providers or not workflow_ids:
        return None
    lease, constants = _lease_statement(tuple(sorted(set(providers))))
    now = utcnow()
    # What is given back comes before what is leased, also in the audit log.
    asked = {"asked_at": now - timedelta(microseconds=1), "reason": NOTHING_HELD}
    values = lanes.lease_values(fleet_id, workflow_ids, worker_id, lease_seconds, now)
    values |= constants | asked | {"audit_id": row_id()}
    first = (GIVE_BACK,) if holds_nothing else ()
    central = databases.engine("central")
    return copy_of(round_trip(central, NO_WAIT_FOR_DISK, *first, lease, values=values))


@cache
def _lease_statement(providers: tuple[str, ...]) -> tuple[Prepared, dict[str, Any]]:
    text, types, constants = spell_out(lanes.lease_statement("postgresql", providers))
    noted = _NOTE_LEASE.format(lease=text)
    return Prepared(f"lease_{'_'.join(providers)}", noted, types | {"audit_id": "uuid"}), constants


def start(databases: Databases, tenant_id: UUID, job_id: UUID) -> tuple[Job, File | None] | None:
    """A worker has it; None if it is not active. With the file of its video, if it has one.

    Takes no other lock, so needs no order of locks. Only what a lease needs is filled in.
    """
    pool = _pool(databases, tenant_id)
    values = {"app_tenant": str(tenant_id), "job_id": job_id, "now": utcnow()}
    row = round_trip(pool, NAME_TENANT, NO_WAIT_FOR_DISK, START, values=values)
    if row is None:
        return None
    of_job = ("id", "tenant_id", "user_id", "status", "video_id", "input_payload")
    of_file = ("id", "filename", "mime_type", "object_key", "content_hash")
    job = Job(**dict(zip(of_job, row[:6], strict=True)))
    file = File(**dict(zip(of_file, row[6:], strict=True)))
    return job, file if file.id is not None else None


def complete(
    databases: Databases,
    dispatch: Dispatch,
    *,
    outputs: Sequence[Output],
    provider_job_id: str | None,
) -> Job | None:
    """The tenant's side of a good end. None if the job had ended before."""
    if dispatch.status != DispatchStatus.LEASED:
        return None
    made = [
        {"id": str(row_id()), "position": position} | vars(output)
        for position, output in enumerate(outputs)
    ]
    values = {
        "app_tenant": str(dispatch.tenant_id),
        "tenant_id": dispatch.tenant_id,
        "user_id": dispatch.user_id,
        "job_id": dispatch.tenant_job_id,
        "entry_id": row_id(),
        "provider_job_id": provider_job_id,
        "outputs": json.dumps(made),
        "now": utcnow(),
    }
    pool = _pool(databases, dispatch.tenant_id)
    row = round_trip(pool, NAME_TENANT, LOCK_WALLET, COMPLETE, values=values)
    if row is None:
        return None
    columns = ("id", "tenant_id", "effect_id", "status", "completed_at")
    return Job(**dict(zip(columns, row, strict=True)))


def follow(
    databases: Databases, dispatch: Dispatch, job: Job, *, actor: str, details: dict[str, Any]
) -> int:
    """Central's side of a good end. Returns how many endpoints were told."""
    if job.status != JobStatus.COMPLETED or job.completed_at is None:
        raise ValueError(f"The job {job.id} did not complete.")
    values = {
        "dispatch_id": dispatch.id,
        "audit_id": row_id(),
        "effect_id": job.effect_id,
        "actor": actor,
        "worker": dispatch.worker_id,
        "details": json.dumps(details),
        "now": job.completed_at,
    }
    central = databases.engine("central")
    if round_trip(central, FOLLOW_UNHEARD, values=values):
        return 0
    message = messages.job_ended(
        job_id=job.id,
        user_id=dispatch.user_id,
        status=job.status,
        error_code=None,
        at=job.completed_at,
    )
    told = {
        "event_key": message.key,
        "message_id": message.id,
        "payload": json.dumps(message.payload),
    }
    row = round_trip(central, FOLLOW_AND_TELL, values=values | told)
    return int(row[0]) if row else 0


def _pool(databases: Databases, tenant_id: UUID) -> Any:
    return databases.engine(f"pool:{databases.pool_of(tenant_id)}")
