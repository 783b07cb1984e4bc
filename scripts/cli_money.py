"""`comfyfleet ledger …` and `comfyfleet wallet …`."""

import sys
from contextlib import closing
from typing import Any
from uuid import uuid4

import click

from scripts.command import clear_errors, open_backend, show, with_json


@click.group()
def ledger() -> None:
    """The token ledger."""


@ledger.command()
@with_json
@clear_errors
def verify(as_json: bool) -> None:
    """Prove, on the live databases, that all money adds up.

    For every wallet, balance = sum of its transactions and not below zero; every job has
    reserved its price once, and was consumed or refunded as its state says. Exit code 1 and
    a list when anything disagrees.
    """
    from models import ledger_audit, migrate
    from models.session import Databases
    from models.settings import Settings

    settings = Settings.from_env()
    databases = Databases(settings)
    migrate.require_current(databases, settings)
    findings: list[dict[str, Any]] = []
    counted = {"wallets": 0, "transactions": 0, "jobs": 0}
    for pool in databases.pools:
        with databases.pool(pool, snapshot=True) as session:
            found = ledger_audit.disagreements(session)
            findings += [{"pool": pool} | vars(one) for one in found]
            for what, number in vars(ledger_audit.totals(session)).items():
                counted[what] += number
    databases.close()
    checked = f"{counted['wallets']} wallets, {counted['transactions']} transactions, " + (
        f"{counted['jobs']} jobs"
    )
    show(
        as_json,
        {"checked": counted, "disagreements": findings},
        [f"{f['pool']} tenant {f['tenant_id']} {f['subject']}: {f['finding']}" for f in findings]
        or [f"The ledger adds up: {checked}."],
    )
    sys.exit(1 if findings else 0)


@click.group()
def wallet() -> None:
    """Users' tokens."""


@wallet.command()
@click.argument("email")
@click.argument("amount", type=click.IntRange(min=1))
@click.option(
    "--transaction-id", help="The payment's id; the same id is booked once. Default: a new one."
)
@click.option("--note", help="Why.")
@with_json
@clear_errors
def credit(
    email: str, amount: int, transaction_id: str | None, note: str | None, as_json: bool
) -> None:
    """Book AMOUNT tokens into the wallet of the user with this EMAIL."""
    from models import users
    from models.errors import NotFound
    from tasks import money

    backend = open_backend()
    with backend.databases.central(read_only=True) as session:
        user = users.find_by_email(session, email)
    if user is None:
        raise NotFound(f"Nobody is registered as {email}.")
    entry, is_new = money.credit(
        backend,
        user_id=user.id,
        amount=amount,
        provider_transaction_id=transaction_id or f"cli:{uuid4()}",
        note=note,
        actor="cli",
    )
    backend.close()
    done = "Booked" if is_new else "Was booked before:"
    show(
        as_json,
        {"user_id": user.id, "amount": entry.amount, "transaction_id": entry.id, "new": is_new},
        f"{done} {entry.amount} tokens for {email} ({entry.provider_transaction_id}).",
    )


@wallet.command("show")
@click.argument("email")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@with_json
@clear_errors
def show_wallet(email: str, limit: int, as_json: bool) -> None:
    """Show the wallet of the user with this EMAIL, and what moved in it, the newest first."""
    from models import ledger, users
    from models.errors import NotFound
    from scripts.table import table
    from tasks import money
    from webapp.api.admin import BookedSchema

    with closing(open_backend(pools_may_be_away=True)) as backend:
        with backend.databases.central(read_only=True) as session:
            user = users.find_by_email(session, email)
        if user is None:
            raise NotFound(f"Nobody is registered as {email}.")
        _, balance, reserved = money.wallet_of(backend, user.id)
        with backend.databases.tenant(user.tenant_id) as session:
            moved = session.scalars(ledger.movements(user.id).limit(limit)).all()
    held = {"user_id": user.id, "email": user.email, "balance": balance, "reserved": reserved}
    rows = [
        [one.created_at, one.type, one.amount, one.job_id or one.provider_transaction_id, one.note]
        for one in moved
    ]
    show(
        as_json,
        held | {"transactions": BookedSchema(many=True).dump(moved)},
        [
            f"{user.email} can spend {balance} tokens; {reserved} are reserved.",
            "",
            table(["at (UTC)", "type", "amount", "job or payment", "note"], rows),
        ],
    )
