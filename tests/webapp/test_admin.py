"""Wallets as administrators see them, and money that they move: once, and audited."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from models import ledger_audit
from models.audit import AuditLog
from models.users import Role
from tests.webapp.calls import (
    NOBODY,
    Caller,
    Json,
    MakeCaller,
    answered,
    completed,
    failed,
    is_utc,
    nothing_written,
    ordered,
    refused,
)


def credit(admin: Caller, user_id: UUID, **given: Any) -> Any:
    body = {"amount": 50, "provider_transaction_id": f"pi_{uuid4().hex}"} | given
    return admin.post(f"/api/admin/wallets/{user_id}/credit", json=body)


def refund(admin: Caller, job: Json, **given: Any) -> Any:
    body = {"note": "The output is broken"} | given
    return admin.post(f"/api/admin/jobs/{job['id']}/refund", json=body)


def audited(admin: Caller, event: str) -> list[dict[str, Any]]:
    with admin.backend.databases.central() as session:
        rows = session.scalars(
            select(AuditLog)
            .where(AuditLog.event == event, AuditLog.actor == f"user:{admin.person.user_id}")
            .order_by(AuditLog.at)
        )
        return [row.details | {"tenant_id": row.tenant_id} for row in rows]


def adds_up(caller: Caller) -> bool:
    with caller.backend.databases.tenant(caller.person.tenant_id) as session:
        return not list(ledger_audit.disagreements(session))


def test_a_payment_is_booked_once_and_audited(caller: MakeCaller) -> None:
    admin, ada = caller(role=Role.ADMIN), caller()
    booked = answered(credit(admin, ada.person.user_id, provider_transaction_id="pi_1"), 201)
    assert set(booked) == {
        "id", "type", "amount", "job_id", "provider_transaction_id", "created_at",
    }  # fmt: skip
    assert (booked["type"], booked["amount"], booked["job_id"]) == ("PAYMENT_CREDIT", 50, None)
    assert booked["provider_transaction_id"] == "pi_1"
    assert is_utc(booked["created_at"])
    again = answered(credit(admin, ada.person.user_id, provider_transaction_id="pi_1"), 200)
    assert again == booked
    assert ada.wallet() == {"balance": 50, "reserved": 0}
    first, second = audited(admin, "wallet.credit")
    assert (first["amount"], first["tenant_id"]) == (50, ada.person.tenant_id)
    assert (first["repeated"], second["repeated"]) == (False, True)


def test_a_payment_cannot_be_booked_differently(caller: MakeCaller) -> None:
    admin, ada, bob = caller(role=Role.ADMIN), caller(), caller()
    answered(credit(admin, ada.person.user_id, provider_transaction_id="pi_2"), 201)
    field = "provider_transaction_id"
    with nothing_written(admin.backend):
        other = credit(admin, ada.person.user_id, provider_transaction_id="pi_2", amount=51)
        refused(other, 422, "transaction_id_reused", field)
    stolen = credit(admin, bob.person.user_id, provider_transaction_id="pi_2")
    refused(stolen, 422, "transaction_id_reused", field)
    assert (ada.wallet()["balance"], bob.wallet()["balance"]) == (50, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amount", 0),
        ("amount", -5),
        ("amount", 10**12 + 1),
        ("amount", 10**30),
        ("amount", 1.5),
        ("amount", "50"),
        ("amount", True),
        ("amount", None),
        ("provider_transaction_id", ""),
        ("provider_transaction_id", "x" * 201),
        ("provider_transaction_id", None),
        ("provider_transaction_id", "a\x00b"),
        ("note", "x" * 501),
        ("tenant_id", NOBODY),
    ],
)
def test_a_bad_payment_is_refused_by_its_field(caller: MakeCaller, field: str, value: Any) -> None:
    admin, ada = caller(role=Role.ADMIN), caller()
    with nothing_written(admin.backend):
        answer = credit(admin, ada.person.user_id, **{field: value})
        refused(answer, 422, "invalid_input", field)


def test_a_payment_for_nobody_is_not_found(caller: MakeCaller) -> None:
    admin = caller(role=Role.ADMIN)
    with nothing_written(admin.backend):
        refused(credit(admin, uuid4()), 404, "not_found")


def test_a_wallet_is_shown_with_every_movement(caller: MakeCaller) -> None:
    admin, ada = caller(role=Role.ADMIN), caller(tokens=10, pool="second")
    job = ordered(ada)
    answered(credit(admin, ada.person.user_id, note="Invoice 17"), 201)
    address = f"/api/admin/wallets/{ada.person.user_id}"
    shown = answered(admin.get(address))
    price = job["price_tokens"]
    assert (shown["balance"], shown["reserved"]) == (60 - price, price)
    assert (shown["user_id"], shown["email"]) == (str(ada.person.user_id), ada.person.email)
    assert shown["tenant_id"] == str(ada.person.tenant_id)
    booked = shown["transactions"]["items"]
    assert [(one["type"], one["amount"], one["note"]) for one in booked] == [
        ("PAYMENT_CREDIT", 50, "Invoice 17"),
        ("JOB_RESERVE", -price, None),
        ("PAYMENT_CREDIT", 10, None),
    ]
    first = answered(admin.get(f"{address}?limit=2"))["transactions"]
    rest = answered(admin.get(f"{address}?cursor={first['next_cursor']}"))["transactions"]
    assert first["items"] + rest["items"] == booked


def test_the_wallet_of_nobody_is_not_found(caller: MakeCaller) -> None:
    refused(caller(role=Role.ADMIN).get(f"/api/admin/wallets/{uuid4()}"), 404, "not_found")


def test_a_user_sees_no_wallet_by_this_address(caller: MakeCaller) -> None:
    ada = caller(tokens=10)
    refused(ada.get(f"/api/admin/wallets/{ada.person.user_id}"), 403, "forbidden")


def test_a_completed_job_can_be_refunded_once(caller: MakeCaller) -> None:
    admin, ada = caller(role=Role.ADMIN), caller(tokens=10)
    job = ordered(ada)
    completed(ada, job["id"])
    given_back = answered(refund(admin, job))
    assert (given_back["id"], given_back["status"]) == (job["id"], "completed")
    assert given_back["refunded"] is True
    assert ada.wallet() == {"balance": 10, "reserved": 0}
    refused(refund(admin, job), 409, "already_refunded")
    assert ada.wallet() == {"balance": 10, "reserved": 0}
    assert adds_up(ada)
    first, second = audited(admin, "job.refund")
    assert (first["note"], first["tenant_id"]) == ("The output is broken", ada.person.tenant_id)
    assert (first["repeated"], second["repeated"]) == (False, True)


def test_refunding_a_waiting_job_cancels_it(caller: MakeCaller) -> None:
    admin, ada = caller(role=Role.ADMIN), caller(tokens=10)
    job = ordered(ada)
    given_back = answered(refund(admin, job))
    assert (given_back["status"], given_back["refunded"]) == ("cancelled", True)
    assert ada.wallet() == {"balance": 10, "reserved": 0}
    assert adds_up(ada)


def test_a_failed_job_was_refunded_already(caller: MakeCaller) -> None:
    admin, ada = caller(role=Role.ADMIN), caller(tokens=10)
    job = ordered(ada)
    failed(ada, job["id"])
    refused(refund(admin, job), 409, "already_refunded")
    assert ada.wallet() == {"balance": 10, "reserved": 0}


def test_jobs_are_found_in_every_pool(caller: MakeCaller) -> None:
    admin, ada = caller(role=Role.ADMIN), caller(tokens=10, pool="second")
    assert answered(refund(admin, ordered(ada)))["refunded"] is True


@pytest.mark.parametrize("note", [None, "", "x" * 501])
def test_a_refund_needs_a_reason(caller: MakeCaller, note: str | None) -> None:
    admin, ada = caller(role=Role.ADMIN), caller(tokens=10)
    job = ordered(ada)
    with nothing_written(admin.backend):
        refused(refund(admin, job, note=note), 422, "invalid_input", "note")


def test_an_unknown_job_is_not_found(caller: MakeCaller) -> None:
    admin = caller(role=Role.ADMIN)
    with nothing_written(admin.backend):
        refused(refund(admin, {"id": uuid4()}), 404, "not_found")


def test_a_user_moves_no_money_not_even_their_own(caller: MakeCaller) -> None:
    ada = caller(tokens=10)
    job = ordered(ada)
    with nothing_written(ada.backend):
        refused(credit(ada, ada.person.user_id), 403, "forbidden")
        refused(refund(ada, job), 403, "forbidden")
        refused(ada.post(f"/api/admin/wallets/{uuid4()}/credit", json={}), 403, "forbidden")


def test_nobody_moves_money_without_signing_in(client: FlaskClient, caller: MakeCaller) -> None:
    address = f"/api/admin/wallets/{caller().person.user_id}/credit"
    refused(client.post(address, json={}), 401, "unauthorized")
