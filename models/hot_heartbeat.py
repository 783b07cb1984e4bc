"""A worker's heartbeat on PostgreSQL, with as little around it as possible: who sends it, that
it is alive, and where its job stands.

Heartbeats are most of what a large fleet says. The bargain is that of hot_worker.py: whatever
is not the ordinary case writes nothing, returns None, and is left to the plain functions. A
heartbeat that a crash of the database loses is one that came a little late, so none of them
waits for the disk.
"""

from datetime import timedelta
from uuid import UUID

from models.base import utcnow
from models.dispatches import Dispatch, Lease
from models.hot_worker import COLUMNS, copy_of
from models.prepared import NO_WAIT_FOR_DISK, Prepared, round_trip
from models.session import Databases
from models.workers import SEEN_SECONDS, Identity, token_hash

# Seldom enough that a busy worker does not write its row with every call.
SEE_WORKER = Prepared(
    "see_worker",
    """
    UPDATE comfyui_workers SET last_seen_at = now()
    WHERE token_hash = %(hash)s AND is_approved
      AND last_seen_at < now() - make_interval(secs => %(seconds)s)
    """,
    {"hash": "text", "seconds": "double precision"},
)

IDENTIFY_WORKER = Prepared(
    "identify_worker",
    """
    SELECT w.id, w.worker_id, w.fleet_id, f.slug, w.providers, w.is_draining, w.last_seen_at,
        ARRAY(SELECT workflow_id FROM worker_workflows WHERE worker_id = w.id)
    FROM comfyui_workers w JOIN comfyui_gpu_fleets f ON f.id = w.fleet_id
    WHERE w.token_hash = %(hash)s AND w.is_approved
    """,
    {"hash": "text"},
)

# Only if it says anything new: whoever asks who a worker is has noted that it is alive.
NOTE_IDLE = Prepared(
    "note_idle_worker",
    """
    UPDATE comfyui_workers SET last_seen_at = now(), current_load = 0
    WHERE id = %(worker)s
      AND (current_load <> 0 OR last_seen_at < now() - make_interval(secs => %(seconds)s))
    """,
    {"worker": "uuid", "seconds": "double precision"},
)

_IS_HELD = """
    id = %(dispatch_id)s AND lease_token = %(token)s AND status = 'leased'
    AND (%(fleet_id)s IS NULL OR fleet_id = %(fleet_id)s)
"""

# A statement of its own: a worker is locked before its dispatch, everywhere.
NOTE_BUSY = Prepared(
    "note_busy_worker",
    f"""
    UPDATE comfyui_workers SET last_seen_at = now(), current_load = 1
    WHERE id = %(worker)s
      AND (current_load <> 1 OR last_seen_at < now() - make_interval(secs => %(seconds)s))
      AND EXISTS (SELECT 1 FROM ai_job_dispatches WHERE {_IS_HELD})
    """,  # noqa: S608 - a condition of our own
    {
        "worker": "uuid",
        "seconds": "double precision",
        "dispatch_id": "uuid",
        "token": "uuid",
        "fleet_id": "uuid",
    },
)

EXTEND = Prepared(
    "extend_lease",
    f"""
    UPDATE ai_job_dispatches SET lease_expires_at = %(until)s, updated_at = %(now)s,
        progress = greatest(progress, least(coalesce(%(progress)s, 0), 1)),
        current_node = coalesce(%(node)s, current_node)
    WHERE {_IS_HELD}
    RETURNING {COLUMNS}
    """,  # noqa: S608 - names of our own columns
    {
        "until": "timestamptz",
        "now": "timestamptz",
        "progress": "double precision",
        "node": "text",
        "dispatch_id": "uuid",
        "token": "uuid",
        "fleet_id": "uuid",
    },
)


def identify(databases: Databases, token: str) -> Identity | None:
    values = {"hash": token_hash(token), "seconds": SEEN_SECONDS}
    central = databases.engine("central")
    row = round_trip(central, NO_WAIT_FOR_DISK, SEE_WORKER, IDENTIFY_WORKER, values=values)
    if row is None:
        return None
    names = "id worker_id fleet_id fleet_slug providers is_draining last_seen_at workflow_ids"
    return Identity(**dict(zip(names.split(), row, strict=True)))


def idle(databases: Databases, worker_id: UUID) -> None:
    """The same as workers.note_seen for a worker without a job, in a transaction of its own."""
    values = {"worker": worker_id, "seconds": SEEN_SECONDS}
    round_trip(databases.engine("central"), NO_WAIT_FOR_DISK, NOTE_IDLE, values=values)


def busy(
    databases: Databases,
    worker_id: UUID,
    lease: Lease,
    *,
    seconds: int,
    progress: float | None,
    current_node: str | None,
) -> Dispatch | None:
    """The same as workers.note_seen and dispatches.extend, in a transaction of its own. A copy.

    None if the lease is not good any more, or the job is not wanted any more.
    """
    now = utcnow()
    values = {
        "worker": worker_id,
        "seconds": SEEN_SECONDS,
        "dispatch_id": lease.dispatch_id,
        "token": lease.token,
        "fleet_id": lease.fleet_id,
        "until": now + timedelta(seconds=seconds),
        "now": now,
        "progress": progress,
        "node": current_node,
    }
    central = databases.engine("central")
    return copy_of(round_trip(central, NO_WAIT_FOR_DISK, NOTE_BUSY, EXTEND, values=values))
