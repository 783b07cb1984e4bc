"""Thousands of jobs whose workers went silent, put into PostgreSQL in two statements."""

import hashlib
from uuid import UUID

from sqlalchemy import text

from models import fleets, workflows
from models.session import make_engine
from tasks.backend import Backend
from tests.tasks import orders

USERS_JOBS = 50

JOBS = """
INSERT INTO ai_jobs (id, tenant_id, user_id, effect_id, effect_slug, workflow_id, provider,
    status, price_tokens, idempotency_key, fingerprint, input_payload, created_at, started_at)
SELECT uuidv7(), :tenant, md5((n % :users)::text)::uuid, gen_random_uuid(), 'colour-card',
    :workflow, 'self_hosted', 'processing', 0, n::text, '', '{"values": {}, "media": {}}',
    now(), now()
FROM generate_series(1, :count) n RETURNING id, user_id
"""
RESERVES = """
INSERT INTO token_transactions (id, tenant_id, wallet_id, user_id, type, amount, job_id, created_at)
SELECT gen_random_uuid(), job.tenant_id, wallet.id, job.user_id, 'JOB_RESERVE', 0, job.id, now()
FROM ai_jobs job JOIN token_wallets wallet USING (tenant_id, user_id)
WHERE job.tenant_id = :tenant AND job.price_tokens = 0
"""
WALLETS = """
INSERT INTO token_wallets (id, tenant_id, user_id, balance)
SELECT gen_random_uuid(), :tenant, md5(n::text)::uuid, 0 FROM generate_series(0, :users - 1) n
"""
DISPATCHES = """
INSERT INTO ai_job_dispatches (id, seq, tenant_id, tenant_job_id, user_id, workflow_id, fleet_id,
    provider, status, priority, turn, attempts, max_attempts, lease_token, lease_expires_at,
    leased_at, worker_id, progress, created_at, updated_at)
SELECT uuidv7(), nextval('ai_job_dispatches_seq'), :tenant, job, owner, :workflow, :fleet,
    'self_hosted', 'leased', 0, 0, :attempts, 3, gen_random_uuid(), now() - interval '1 hour',
    now() - interval '2 hours', 'w-' || job, 0.5, now(), now()
FROM unnest(CAST(:jobs AS uuid[]), CAST(:owners AS uuid[])) AS held (job, owner)
"""


def user(number: int) -> UUID:
    """Whose jobs they are."""
    return UUID(hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest())


def add_expired(backend: Backend, tenant_id: UUID, count: int, *, attempts: int = 1) -> None:
    """Each on its worker, since two hours; nothing was heard for one."""
    with backend.databases.central(read_only=True) as session:
        fleet = fleets.get(session, stage=backend.settings.stage, slug="gpu-default")
        workflow = workflows.get(session, orders.EFFECT)
    values = {"tenant": tenant_id, "workflow": workflow.id, "users": max(count // USERS_JOBS, 1)}
    pool = make_engine(backend.settings.pools["main"], as_owner=True)
    with pool.begin() as connection:
        connection.execute(text("SET LOCAL app.tenant_id = '*'"))
        connection.execute(text(WALLETS), values)
        made = connection.execute(text(JOBS), values | {"count": count}).all()
        connection.execute(text(RESERVES), values)
    pool.dispose()
    held = {"jobs": [row.id for row in made], "owners": [row.user_id for row in made]}
    central = make_engine(backend.settings.central_url, as_owner=True)
    with central.begin() as connection:
        connection.execute(
            text(DISPATCHES), values | held | {"fleet": fleet.id, "attempts": attempts}
        )
    central.dispose()
