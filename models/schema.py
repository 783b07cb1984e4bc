"""Every table of both databases, so that nobody forgets to import one."""

from models import (
    audit,
    base,
    control_turns,
    dead_letters,
    dispatches,
    effects,
    files,
    fleets,
    jobs,
    ledger,
    tenants,
    users,
    videos,
    webhooks,
    workers,
    workflows,
)

NOUNS = (
    audit,
    control_turns,
    dead_letters,
    dispatches,
    effects,
    files,
    fleets,
    jobs,
    ledger,
    tenants,
    users,
    videos,
    webhooks,
    workers,
    workflows,
)

METADATA = {"central": base.CentralBase.metadata, "tenant": base.TenantBase.metadata}
