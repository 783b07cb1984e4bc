"""Tell tenants that a wallet is low. Safe to run twice, and at the same time.

    1. tenant pool   wallets that fell are noted, with the time that names the fall
    2. central       a delivery for each endpoint that listens, under that name
    3. tenant pool   it is noted that they were told

A crash in between is made good by the next run: under one name an endpoint is told once.
Only tenants that want to be told are looked at, so orders pay nothing for it.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from models import deliveries, low_wallets, messages, webhooks
from models.base import utcnow
from models.ledger import Wallet
from models.messages import Event
from tasks.backend import Backend
from tasks.steps import each, in_pool

BATCH = 500


@dataclass
class Watched:
    wallets_told: int = 0


def run_once(backend: Backend, *, now: datetime | None = None) -> Watched:
    now = now or utcnow()
    if backend.settings.wallet_low_tokens <= 0:
        return Watched()
    with backend.databases.central(read_only=True) as session:
        by_pool = webhooks.tenants_listening(session, Event.WALLET_LOW)
    told = 0
    for pool, tenant_ids in by_pool.items():
        told += in_pool(backend, pool, partial(_tell_all, backend, tenant_ids, now=now))
    if told:
        backend.bell.call_courier()
    return Watched(wallets_told=told)


def _tell_all(backend: Backend, tenant_ids: list[UUID], pool: str, *, now: datetime) -> int:
    batches = (tenant_ids[first : first + BATCH] for first in range(0, len(tenant_ids), BATCH))
    return sum(_tell_some(backend, some, pool, now=now) for some in batches)


def _tell_some(backend: Backend, tenant_ids: list[UUID], pool: str, *, now: datetime) -> int:
    below = backend.settings.wallet_low_tokens
    with backend.databases.pool(pool) as session:
        low_wallets.note(session, tenant_ids, below=below, now=now)
    with backend.databases.pool(pool) as session:
        low = low_wallets.untold(session, tenant_ids, limit=BATCH)
    return each(low, lambda wallet: _tell(backend, wallet, now=now))


def _tell(backend: Backend, wallet: Wallet, *, now: datetime) -> bool:
    message = messages.wallet_low(
        wallet_id=wallet.id,
        user_id=wallet.user_id,
        balance=wallet.balance,
        below=wallet.low_below or 0,
        at=wallet.low_since or now,
    )
    with backend.databases.central() as session:
        deliveries.tell(session, wallet.tenant_id, message)
    with backend.databases.tenant(wallet.tenant_id) as session:
        low_wallets.note_told(session, wallet, now=now)
    return True
