"""What happened is counted once: however often, late, early or at once somebody counts."""

import sys
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text

from models import jobs
from models.audit import AuditLog
from models.base import utcnow
from models.jobs import Job
from models.ledger import Wallet
from tasks import counting, reconcile
from tasks.backend import Backend
from tasks.counting import Counted
from tests.fixtures import make_person
from tests.models.waiting import make_queue
from tests.tasks import away, gpu, orders

NOW = utcnow()  # of each test


@pytest.fixture(autouse=True)
def this_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "NOW", utcnow())


def count(backend: Backend, before: Counted | None = None, *, minutes: float = 0) -> Counted:
    kept = {name: one.to_json() for name, one in before.sources.items()} if before else {}
    return counting.count(backend, kept, now=NOW + timedelta(minutes=minutes))


class Leases:
    """Leases of one fleet that ran out, as the audit log has them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        queue = make_queue(backend)
        [job_id] = queue.add(uuid4())
        self.dispatch_id = queue.row(job_id).id

    def expire(self, *, minutes: float) -> None:
        with self.backend.databases.central() as session:
            session.add(
                AuditLog(
                    at=NOW + timedelta(minutes=minutes),
                    event="job.lease_expired",
                    actor="system",
                    dispatch_id=self.dispatch_id,
                    details={},
                )
            )


@pytest.fixture
def leases(backend: Backend) -> Leases:
    return Leases(backend)


def expired(counted: Counted) -> float:
    return sum(number for name, number in counted.totals.items() if name.startswith("leases:"))


def test_counting_begins_with_the_last_minute(backend: Backend, leases: Leases) -> None:
    for minutes in (-60, -2, -0.5):
        leases.expire(minutes=minutes)
    assert expired(count(backend)) == 1


def test_each_is_counted_once_however_often_somebody_counts(
    backend: Backend, leases: Leases
) -> None:
    counted = count(backend)
    for number in range(1, 12):
        leases.expire(minutes=number / 3 - 0.1)
        counted = count(backend, counted, minutes=number / 3)
        assert expired(counted) == number
    assert expired(count(backend, counted, minutes=100)) == 11
    assert expired(count(backend, counted, minutes=11 / 3)) == 11  # again, after a crash


def test_a_row_that_comes_late_is_counted_all_the_same(backend: Backend, leases: Leases) -> None:
    counted = count(backend, count(backend), minutes=1)
    leases.expire(minutes=0.2)
    assert expired(count(backend, counted, minutes=1.1)) == 1


def test_minutes_in_which_nobody_counted_are_made_up_for(backend: Backend, leases: Leases) -> None:
    counted = count(backend)
    for minutes in (1, 30, 59):
        leases.expire(minutes=minutes)
    assert expired(count(backend, counted, minutes=60)) == 3


def test_a_clock_that_jumps_ahead_and_back_makes_nothing_count_twice(
    backend: Backend, leases: Leases, caplog: pytest.LogCaptureFixture
) -> None:
    counted = count(backend)
    leases.expire(minutes=-0.1)
    counted = count(backend, counted, minutes=60)
    assert expired(counted) == 1
    counted = count(backend, counted, minutes=0.1)
    assert "a clock was wrong" in caplog.text
    leases.expire(minutes=1)
    for minutes in (1.1, 2.1, 3.1):
        counted = count(backend, counted, minutes=minutes)
        assert expired(counted) == 2


def test_what_was_kept_and_cannot_be_read_is_counted_anew(backend: Backend, leases: Leases) -> None:
    leases.expire(minutes=-0.5)
    for garbage in ({"until": "soon"}, {"until": NOW.isoformat(), "colour": 1}, {}, None):
        counted = counting.count(backend, {counting.CENTRAL: garbage}, now=NOW)
        assert expired(counted) == 1


# Money


def tokens(counted: Counted) -> tuple[float, ...]:
    return tuple(counted.totals[name] for name in ("credited", "reserved", "consumed", "refunded"))


def differences(counted: Counted) -> dict[str, int]:
    return {name: one.difference for name, one in counted.sources.items() if one.difference}


def some_history(backend: Backend) -> None:
    """100 tokens credited; three jobs of 3: completed, failed and still waiting."""
    ada = make_person(backend, tokens=100)
    worker = gpu.join(backend)
    for end in ("complete", "fail"):
        job = orders.order(backend, ada)
        gpu.take(backend, worker)
        with backend.databases.tenant(ada.tenant_id) as session:
            if end == "complete":
                jobs.complete(session, job.id, outputs=[])
            else:
                jobs.fail(session, job.id, code="c", message="m")
    orders.order(backend, ada)


def price(backend: Backend) -> int:
    with backend.databases.pool("main") as session:
        return session.query(Job).first().price_tokens  # type: ignore[union-attr]


def test_tokens_are_told_from_the_first_on(demo: Backend) -> None:
    some_history(demo)
    three = price(demo)
    expected = (100, 3 * three, three, three)
    counted = count(demo, minutes=5)
    assert tokens(counted) == expected
    assert differences(counted) == {}
    make_person(demo, tokens=50, pool="second")
    counted = count(demo, counted, minutes=6)
    assert tokens(counted) == (150, *expected[1:])
    assert tokens(count(demo, counted, minutes=6)) == (150, *expected[1:])


def test_a_transaction_that_comes_very_late_is_found_by_what_the_wallets_hold(
    demo: Backend,
) -> None:
    make_person(demo, tokens=100)
    counted = count(demo, minutes=30)
    make_person(demo, tokens=7)  # its time lies half an hour before
    counted = count(demo, counted, minutes=31)
    assert tokens(counted)[0] == 107
    assert differences(counted) == {}
    assert tokens(count(demo, counted, minutes=32))[0] == 107


def test_wallets_that_disagree_with_their_ledger_are_told(
    demo: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    ada = make_person(demo, tokens=100)
    counted = count(demo)
    with demo.databases.tenant(ada.tenant_id) as session:
        session.query(Wallet).update({"balance": 90})
    for minutes in (1, 2):
        counted = count(demo, counted, minutes=minutes)
        assert differences(counted) == {"main": -10}
    assert caplog.text.count("-10 tokens") == 1  # recounted and told once
    with demo.databases.tenant(ada.tenant_id) as session:
        session.query(Wallet).update({"balance": 100})
    assert differences(count(demo, counted, minutes=3)) == {}


def test_a_pool_that_is_away_keeps_its_figures_and_catches_up(demo: Backend) -> None:
    make_person(demo, tokens=100)
    make_person(demo, tokens=10, pool="second")
    counted = count(demo)
    other = Backend.open(replace(demo.settings, **away.pools(demo, "main")))
    make_person(demo, tokens=1)
    make_person(demo, tokens=1, pool="second")
    counted = count(other, counted, minutes=1)
    other.close()
    assert tokens(counted)[0] == 111
    assert tokens(count(demo, counted, minutes=2))[0] == 112


# Orders


def test_orphans_are_counted_when_they_are_refunded(demo: Backend) -> None:
    counted = count(demo)
    ada = make_person(demo, tokens=100)
    job = orders.order(demo, ada)
    demo.later.close()
    with demo.databases.tenant(ada.tenant_id) as session:
        session.get_one(Job, job.id).status = "submitting"
    with demo.databases.central() as session:
        session.execute(text("DELETE FROM ai_job_dispatches"))
        session.execute(text("DELETE FROM comfyui_workflow_fleets"))
    assert reconcile.run_once(demo, now=utcnow() + timedelta(seconds=301)).orphans_refunded == 1
    counted = count(demo, counted, minutes=1)
    assert counted.totals["orphans"] == 1
    assert count(demo, counted, minutes=9).totals["orphans"] == 1


def test_a_submission_takes_from_its_order_until_its_dispatch_is_there(demo: Backend) -> None:
    counted = count(demo)
    ada = make_person(demo, tokens=100)
    for _ in range(3):
        orders.order(demo, ada)
    counted = count(demo, counted, minutes=1)
    assert counted.totals["submissions"] == len(counted.submissions) == 3
    assert all(0 <= one.milliseconds < 60_000 for one in counted.submissions)
    counted = count(demo, counted, minutes=3)
    assert counted.totals["submissions"] == 3
    assert count(demo, counted, minutes=5).submissions == []
