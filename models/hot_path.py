"""The ordinary submit on PostgreSQL, with as little around it as possible.

A submit is the one call whose cost is felt, and its cost is Python and planning per
statement. So what happens nearly always (a known token, a new order, enough tokens) is
done here in one round trip per transaction, with statements planned once.

Nothing is decided here. Whatever is not the ordinary case (a repeat, too few tokens, a
video of somebody else) writes nothing, returns None, and is left to the plain functions in
users.py and orders.py, which know the reasons. A test compares the rows that both ways write.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy.dialects.postgresql import psycopg2

from models import lanes
from models.base import row_id, utcnow
from models.dispatches import Dispatch
from models.jobs import Job, JobStatus
from models.orders import Order
from models.prepared import NAME_TENANT, Prepared, round_trip
from models.session import Databases
from models.users import Principal, token_hash

IDENTIFY = Prepared(
    "identify",
    """
    SELECT u.id, u.tenant_id, u.role, t.id, n.pool
    FROM access_tokens t JOIN users u ON u.id = t.user_id JOIN tenants n ON n.id = u.tenant_id
    WHERE t.token_hash = %(hash)s AND t.revoked_at IS NULL AND t.expires_at > now()
    """,
    {"hash": "text"},
)

# A statement of its own: the next one then sees everything that whoever held the lock
# before has committed.
LOCK_WALLET = Prepared(
    "lock_wallet",
    """
    SELECT 1 FROM token_wallets
    WHERE tenant_id = %(tenant_id)s AND user_id = %(user_id)s FOR UPDATE
    """,
    {"tenant_id": "uuid", "user_id": "uuid"},
)

# Whoever deletes the video holds its row: afterwards it is seen as deleted.
LOCK_VIDEO = Prepared(
    "lock_video",
    "SELECT 1 FROM videos WHERE id = %(video_id)s FOR UPDATE",
    {"video_id": "uuid"},
)

SUBMIT = Prepared(
    "submit",
    """
    WITH wallet AS (
        SELECT id, balance FROM token_wallets
        WHERE tenant_id = %(tenant_id)s AND user_id = %(user_id)s
    ), job AS (
        INSERT INTO ai_jobs (id, tenant_id, user_id, effect_id, effect_slug, workflow_id,
            provider, video_id, status, price_tokens, idempotency_key, fingerprint,
            input_payload, created_at)
        SELECT %(job_id)s, %(tenant_id)s, %(user_id)s, %(effect_id)s, %(effect_slug)s,
            %(workflow_id)s, %(provider)s, %(video_id)s, 'submitting', %(price_tokens)s,
            %(idempotency_key)s, %(fingerprint)s, %(input_payload)s, %(now)s
        FROM wallet
        WHERE balance >= %(price_tokens)s
          AND (SELECT count(*) FROM ai_jobs WHERE user_id = %(user_id)s
                AND status IN ('submitting', 'queued', 'processing')) < %(max_active)s
          AND (%(video_id)s IS NULL OR EXISTS (SELECT 1 FROM videos
              WHERE id = %(video_id)s AND user_id = %(user_id)s AND kind = %(video_kind)s
                AND deleted_at IS NULL AND status <> 'expired'))
        ON CONFLICT (tenant_id, user_id, idempotency_key) DO NOTHING
        RETURNING id
    ), held AS (
        INSERT INTO token_transactions
            (id, tenant_id, wallet_id, user_id, type, amount, job_id, created_at)
        SELECT %(entry_id)s, %(tenant_id)s, wallet.id, %(user_id)s, 'JOB_RESERVE',
            -%(price_tokens)s, job.id, %(now)s
        FROM job, wallet
    ), used AS (
        UPDATE videos SET status = 'processing', error = NULL, expires_at = NULL
        FROM job WHERE videos.id = %(video_id)s
    )
    UPDATE token_wallets SET balance = token_wallets.balance - %(price_tokens)s
    FROM job, wallet WHERE token_wallets.id = wallet.id
    RETURNING job.id
    """,
    {
        "tenant_id": "uuid",
        "user_id": "uuid",
        "job_id": "uuid",
        "entry_id": "uuid",
        "effect_id": "uuid",
        "effect_slug": "text",
        "workflow_id": "uuid",
        "provider": "text",
        "video_id": "uuid",
        "video_kind": "text",
        "price_tokens": "integer",
        "idempotency_key": "text",
        "fingerprint": "text",
        "input_payload": "jsonb",
        "max_active": "bigint",
        "now": "timestamptz",
    },
)


def identify(databases: Databases, token: str) -> Principal | None:
    values = {"hash": token_hash(token)}
    row = round_trip(databases.engine("central"), IDENTIFY, values=values)
    if row is None:
        return None
    user_id, tenant_id, role, token_id, pool = row
    databases.remember_pool(tenant_id, pool)  # it would be asked for next
    return Principal(user_id, tenant_id, role, token_id)


def submit(databases: Databases, tenant_id: UUID, order: Order, *, max_active: int) -> Job | None:
    """Order a new job and take its price, or return None if this is not the ordinary case."""
    video_kind = _only_video(order)
    if video_kind is None:
        return None
    ordered = vars(order)
    job = Job(
        id=row_id(),
        tenant_id=tenant_id,
        status=JobStatus.SUBMITTING,
        created_at=utcnow(),
        outputs=[],
        **ordered,
    )
    values = ordered | {
        "app_tenant": str(tenant_id),
        "tenant_id": tenant_id,
        "job_id": job.id,
        "entry_id": row_id(),
        "now": job.created_at,
        "max_active": max_active,
        "video_kind": video_kind,
        "input_payload": json.dumps(order.input_payload),
    }
    pool = databases.engine(f"pool:{databases.pool_of(tenant_id)}")
    locks = (LOCK_WALLET, LOCK_VIDEO) if order.video_id else (LOCK_WALLET,)
    taken = round_trip(pool, NAME_TENANT, *locks, SUBMIT, values=values)
    return job if taken else None


def _only_video(order: Order) -> str | None:
    """The kind of the order's one video; "" if it has no media; None if it has others."""
    media: Mapping[str, str] = order.input_payload["media"]
    primary = order.input_payload["primary"]
    expected = {primary} if order.video_id is not None else set()
    if set(media) != expected:
        return None
    return media[primary] if expected else ""


def join(databases: Databases, **values: Any) -> UUID | None:
    """The same as lanes.join, in a transaction of its own."""
    statement, constants = _join_statement()
    dispatch_id = row_id()
    values |= {"id": dispatch_id, "priority": 0, "now": utcnow()}
    made = round_trip(databases.engine("central"), statement, values=constants | values)
    return dispatch_id if made else None


@cache
def _join_statement() -> tuple[Prepared, dict[str, Any]]:
    statement = lanes.join_statement("postgresql").returning(Dispatch.id)
    text, types, constants = spell_out(statement)
    return Prepared("join_lane", text, types), constants


def spell_out(statement: Any) -> tuple[str, dict[str, str], dict[str, Any]]:
    """A statement of lanes.py as text, the types of its parameters, and the constant ones."""
    dialect = psycopg2.dialect()  # type: ignore[no-untyped-call]
    compiled = statement.compile(dialect=dialect)
    binds = compiled.bind_names.items()
    types = {bound: bind.type.compile(dialect=dialect) for bind, bound in binds}
    constants = {bound: bind.value for bind, bound in binds if not bind.required}
    return str(compiled), types, constants
