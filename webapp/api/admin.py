"""For administrators: users' wallets, and money that moves by a person's decision."""

from typing import Any
from uuid import UUID

from marshmallow import Schema, fields, validate
from sqlalchemy import select

from models import ledger
from models.ledger import Transaction
from tasks import money
from webapp.api import ai_jobs
from webapp.api.wallet import TransactionSchema, WalletSchema
from webapp.auth import let_admins_in
from webapp.context import backend, principal
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of

blueprint = let_admins_in(
    ApiBlueprint("admin", __name__, url_prefix="/api/admin", description=__doc__)
)


class CreditSchema(Schema):
    amount = fields.Integer(
        required=True,
        strict=True,
        validate=validate.Range(1, ledger.MAX_TOKENS),
        metadata={"example": 500},
    )
    provider_transaction_id = fields.String(
        required=True, validate=validate.Length(1, 200), metadata={"example": "pi_3OqX2c"}
    )
    note = fields.String(load_default=None, validate=validate.Length(max=500))


class BookedSchema(TransactionSchema):
    note = fields.String(required=True, allow_none=True)


class UserWalletSchema(WalletSchema):
    user_id = fields.UUID(required=True)
    tenant_id = fields.UUID(required=True)
    email = fields.String(required=True)
    transactions = fields.Nested(page_of(BookedSchema), required=True)


class RefundSchema(Schema):
    note = fields.String(
        required=True, validate=validate.Length(1, 500), metadata={"example": "Broken output"}
    )


def actor() -> str:
    return f"user:{principal().user_id}"


@blueprint.get("/wallets/<uuid:user_id>")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, UserWalletSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def show_wallet(query: dict[str, Any], user_id: UUID) -> dict[str, Any]:
    """A user's wallet, and every movement of its tokens, newest first"""
    user, balance, reserved = money.wallet_of(backend(), user_id)
    with backend().databases.tenant(user.tenant_id) as session:
        found, cursor = page(
            session,
            select(Transaction).where(Transaction.user_id == user_id),
            newest=(Transaction.created_at, Transaction.id),
            scope=f"admin-wallet {user_id}",
            **query,
        )
    return {
        "user_id": user.id,
        "tenant_id": user.tenant_id,
        "email": user.email,
        "balance": balance,
        "reserved": reserved,
        "transactions": {"items": found, "next_cursor": cursor},
    }


@blueprint.post("/wallets/<uuid:user_id>/credit")
@blueprint.arguments(CreditSchema)
@blueprint.response(201, TransactionSchema, description="Booked.")
@blueprint.alt_response(200, schema=TransactionSchema, description="Booked before; once only.")
@blueprint.alt_response(404, "NOT_FOUND")
def credit(payment: dict[str, Any], user_id: UUID) -> Any:
    """Book a payment into a user's wallet"""
    entry, is_new = money.credit(backend(), user_id=user_id, actor=actor(), **payment)
    return entry, 201 if is_new else 200


@blueprint.post("/jobs/<uuid:job_id>/refund")
@blueprint.arguments(RefundSchema)
@blueprint.response(200, ai_jobs.JobSchema)
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
def refund(given: dict[str, Any], job_id: UUID) -> dict[str, Any]:
    """Give the tokens of a job back, whatever state it is in; once, and audited"""
    job = money.refund(backend(), job_id=job_id, note=given["note"], actor=actor())
    return ai_jobs.shapes([job])[0]
