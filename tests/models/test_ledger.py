"""The ledger, alone: every booking once, never below zero, append-only."""

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from models import ledger, ledger_audit, orders
from models.errors import InsufficientTokens, InvalidInput, TransactionIdReused
from models.jobs import Job
from models.ledger import Transaction, TransactionType, Wallet
from models.orders import Order
from tasks.backend import Backend
from tests.fixtures import MakePerson, Person, make_person


def order(person: Person, *, price: int = 10, key: str | None = None) -> Order:
    return Order(
        user_id=person.user_id,
        effect_id=uuid4(),
        effect_slug="test",
        workflow_id=uuid4(),
        provider="self_hosted",
        price_tokens=price,
        idempotency_key=key or uuid4().hex,
        fingerprint="same",
        input_payload={"values": {}, "media": {}, "primary": None, "content_hash": "x"},
    )


def submitted(session: Session, person: Person, *, price: int = 10) -> Job:
    return orders.submit(session, order(person, price=price), max_active=100).job


def balance(session: Session, person: Person) -> int:
    return ledger.balance(session, user_id=person.user_id)


def test_a_payment_is_booked_once(backend: Backend, person: MakePerson) -> None:
    ada = person()
    for expected_new in (True, False):
        with backend.databases.tenant(ada.tenant_id) as session:
            _, is_new = ledger.credit(
                session, user_id=ada.user_id, amount=70, provider_transaction_id="pi_1"
            )
            assert is_new is expected_new
            assert balance(session, ada) == 70


def test_a_payment_id_cannot_be_booked_for_another_amount_or_person(
    backend: Backend, person: MakePerson
) -> None:
    ada, bob = person(), person()
    with backend.databases.tenant(ada.tenant_id) as session:
        ledger.credit(session, user_id=ada.user_id, amount=70, provider_transaction_id="pi_1")
    with backend.databases.tenant(ada.tenant_id) as session, pytest.raises(TransactionIdReused):
        ledger.credit(session, user_id=ada.user_id, amount=71, provider_transaction_id="pi_1")
    # Bob's session can't even see Ada's booking; the unique index does.
    with backend.databases.tenant(bob.tenant_id) as session, pytest.raises(TransactionIdReused):
        ledger.credit(session, user_id=bob.user_id, amount=70, provider_transaction_id="pi_1")


@pytest.mark.parametrize("amount", [0, -5, ledger.MAX_TOKENS + 1])
def test_an_odd_amount_is_refused(backend: Backend, person: MakePerson, amount: int) -> None:
    ada = person()
    with backend.databases.tenant(ada.tenant_id) as session, pytest.raises(InvalidInput):
        ledger.credit(session, user_id=ada.user_id, amount=amount, provider_transaction_id="p")


def test_reserve_then_consume_keeps_the_price(backend: Backend, person: MakePerson) -> None:
    ada = person(tokens=30)
    with backend.databases.tenant(ada.tenant_id) as session:
        job = submitted(session, ada)
        assert balance(session, ada) == 20
        for _ in range(2):
            assert ledger.consume(session, user_id=ada.user_id, job_id=job.id).amount == 0
        assert balance(session, ada) == 20


def test_reserve_then_refund_gives_it_back_once(backend: Backend, person: MakePerson) -> None:
    ada = person(tokens=30)
    with backend.databases.tenant(ada.tenant_id) as session:
        job = submitted(session, ada)
        for _ in range(2):
            ledger.refund(session, user_id=ada.user_id, job_id=job.id)
            assert balance(session, ada) == 30


def test_what_was_consumed_is_not_refunded(backend: Backend, person: MakePerson) -> None:
    ada = person(tokens=30)
    with backend.databases.tenant(ada.tenant_id) as session:
        job = submitted(session, ada)
        ledger.consume(session, user_id=ada.user_id, job_id=job.id)
        entry = ledger.refund(session, user_id=ada.user_id, job_id=job.id)
        assert entry.type == TransactionType.JOB_CONSUME
        assert balance(session, ada) == 20


def test_a_refund_without_a_reserve_is_a_bug(backend: Backend, person: MakePerson) -> None:
    ada = person(tokens=30)
    with backend.databases.tenant(ada.tenant_id) as session, pytest.raises(LookupError):
        ledger.refund(session, user_id=ada.user_id, job_id=uuid4())


def test_too_few_tokens_says_how_many_are_needed(backend: Backend, person: MakePerson) -> None:
    ada = person(tokens=9)
    with (
        pytest.raises(InsufficientTokens) as refused,
        backend.databases.tenant(ada.tenant_id) as session,
    ):
        submitted(session, ada)
    assert refused.value.extra == {"required_tokens": 10, "balance": 9}
    with backend.databases.tenant(ada.tenant_id) as session:
        assert balance(session, ada) == 9
        assert session.query(Job).count() == 0


def test_the_database_refuses_a_second_resolution(backend: Backend, person: MakePerson) -> None:
    ada = person(tokens=30)
    with backend.databases.tenant(ada.tenant_id) as session:
        job = submitted(session, ada)
        ledger.consume(session, user_id=ada.user_id, job_id=job.id)
    with pytest.raises(IntegrityError), backend.databases.tenant(ada.tenant_id) as session:
        wallet = session.query(Wallet).one()
        session.add(
            Transaction(
                wallet_id=wallet.id,
                user_id=ada.user_id,
                type=TransactionType.JOB_REFUND,
                amount=10,
                job_id=job.id,
            )
        )


def test_the_database_refuses_a_negative_balance(backend: Backend, person: MakePerson) -> None:
    ada = person(tokens=30)
    with pytest.raises(IntegrityError), backend.databases.tenant(ada.tenant_id) as session:
        session.query(Wallet).one().balance = -1


@pytest.mark.parametrize(
    "statement", ["UPDATE token_transactions SET amount = 99", "DELETE FROM token_transactions"]
)
def test_the_ledger_is_append_only(backend: Backend, person: MakePerson, statement: str) -> None:
    ada = person(tokens=30)
    with pytest.raises(DBAPIError), backend.databases.tenant(ada.tenant_id) as session:
        session.execute(text(statement))
    with backend.databases.tenant(ada.tenant_id) as session:
        assert session.query(Transaction).one().amount == 30


def test_the_audit_finds_what_disagrees(backend: Backend, person: MakePerson) -> None:
    ada = person(tokens=30)
    with backend.databases.tenant(ada.tenant_id) as session:
        job_id = submitted(session, ada).id
    assert findings(backend) == []
    with backend.databases.tenant(ada.tenant_id) as session:
        session.query(Wallet).one().balance = 25
        job = session.get_one(Job, job_id)
        job.status, job.completed_at = "completed", job.created_at
    found = {one.subject.partition(":")[0]: one.finding for one in findings(backend)}
    assert found == {
        "wallet": "The balance is 25, its transactions add up to 20.",
        "job": "Completed, but its price was not consumed.",
    }


def findings(backend: Backend) -> list[ledger_audit.Disagreement]:
    with backend.databases.pool("main", snapshot=True) as session:
        return list(ledger_audit.disagreements(session))


def test_16_submits_at_once_against_a_wallet_for_5(postgres: Backend) -> None:
    """Real threads on the real server: exactly as many as the wallet pays for."""
    ada = make_person(postgres, tokens=50)

    def submit_one(_: int) -> UUID | None:
        try:
            with postgres.databases.tenant(ada.tenant_id) as session:
                return orders.submit(session, order(ada), max_active=100).job.id
        except InsufficientTokens:
            return None

    with ThreadPoolExecutor(16) as threads:
        made = [job for job in threads.map(submit_one, range(16)) if job]
    assert len(made) == 5
    with postgres.databases.tenant(ada.tenant_id) as session:
        assert balance(session, ada) == 0
        assert session.query(Job).count() == 5
    assert findings(postgres) == []


def test_the_same_order_16_times_at_once_is_one_job(postgres: Backend) -> None:
    ada = make_person(postgres, tokens=500)

    def submit_one(_: int) -> UUID:
        with postgres.databases.tenant(ada.tenant_id) as session:
            return orders.submit(session, order(ada, key="once"), max_active=100).job.id

    with ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(submit_one, range(16)))) == 1
    with postgres.databases.tenant(ada.tenant_id) as session:
        assert balance(session, ada) == 490
