"""The user's tokens."""

from typing import Any

from marshmallow import Schema, fields, validate
from sqlalchemy import select

from models import jobs, ledger
from models.ledger import Transaction, TransactionType
from webapp.auth import let_users_in
from webapp.context import backend, principal
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of
from webapp.shapes import Time

blueprint = let_users_in(
    ApiBlueprint("wallet", __name__, url_prefix="/api/wallet", description=__doc__)
)


class WalletSchema(Schema):
    balance = fields.Integer(required=True, metadata={"description": "What can be spent."})
    reserved = fields.Integer(
        required=True, metadata={"description": "Held for jobs that have not ended."}
    )


class TransactionSchema(Schema):
    id = fields.UUID(required=True)
    type = fields.String(required=True, validate=validate.OneOf([*TransactionType]))
    amount = fields.Integer(required=True)
    job_id = fields.UUID(required=True, allow_none=True)
    provider_transaction_id = fields.String(required=True, allow_none=True)
    created_at = Time(required=True)


@blueprint.get("")
@blueprint.response(200, WalletSchema)
def show() -> dict[str, int]:
    """Balance and reserved tokens"""
    user_id = principal().user_id
    with backend().databases.tenant(principal().tenant_id) as session:
        return {
            "balance": ledger.balance(session, user_id=user_id),
            "reserved": jobs.reserved_tokens(session, user_id=user_id),
        }


@blueprint.get("/transactions")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, page_of(TransactionSchema))
def list_transactions(query: dict[str, Any]) -> dict[str, Any]:
    """Every movement of tokens, newest first"""
    with backend().databases.tenant(principal().tenant_id) as session:
        found, cursor = page(
            session,
            select(Transaction).where(Transaction.user_id == principal().user_id),
            newest=(Transaction.created_at, Transaction.id),
            scope="transactions",
            **query,
        )
    return {"items": found, "next_cursor": cursor}
