"""The wallet as its owner sees it."""

from tests.webapp.calls import (
    MakeCaller,
    answered,
    completed,
    failed,
    is_utc,
    new_effect,
    ordered,
)


def test_a_new_wallet_is_empty(caller: MakeCaller) -> None:
    ada = caller()
    assert ada.wallet() == {"balance": 0, "reserved": 0}
    empty = {"items": [], "next_cursor": None}
    assert answered(ada.get("/api/wallet/transactions")) == empty


def test_what_is_held_for_jobs_is_reserved_until_they_end(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    effect = new_effect(ada.backend, cost=30)
    done, lost, waiting = (ordered(ada, effect)["id"] for _ in range(3))
    assert ada.wallet() == {"balance": 10, "reserved": 90}
    completed(ada, done)
    assert ada.wallet() == {"balance": 10, "reserved": 60}
    failed(ada, lost)
    assert ada.wallet() == {"balance": 40, "reserved": 30}
    ada.post(f"/api/ai-jobs/{waiting}/cancel")
    assert ada.wallet() == {"balance": 70, "reserved": 0}


def test_every_movement_is_listed_newest_first(caller: MakeCaller) -> None:
    ada = caller(tokens=100)
    effect = new_effect(ada.backend, cost=30)
    done, lost = (ordered(ada, effect)["id"] for _ in range(2))
    completed(ada, done)
    failed(ada, lost)
    listed = answered(ada.get("/api/wallet/transactions"))["items"]
    assert [(row["type"], row["amount"], row["job_id"]) for row in listed] == [
        ("JOB_REFUND", 30, lost),
        ("JOB_CONSUME", 0, done),
        ("JOB_RESERVE", -30, lost),
        ("JOB_RESERVE", -30, done),
        ("PAYMENT_CREDIT", 100, None),
    ]
    for row in listed:
        assert set(row) == {
            "id", "type", "amount", "job_id", "provider_transaction_id", "created_at",
        }  # fmt: skip
        assert is_utc(row["created_at"])
        assert (row["provider_transaction_id"] is None) == (row["job_id"] is not None)
    assert sum(row["amount"] for row in listed) == ada.wallet()["balance"]


def test_an_effect_that_costs_nothing_needs_no_tokens(caller: MakeCaller) -> None:
    ada = caller()
    job = ordered(ada, new_effect(ada.backend, cost=0))
    assert (job["price_tokens"], ada.wallet()) == (0, {"balance": 0, "reserved": 0})
    completed(ada, job["id"])
