"""Any interleaving of submit, complete, fail, cancel, requeue, leave, crash, retry and redrive
keeps the books.

Hypothesis drives the real steps over both databases and stops them at any transaction, as
a crash would. After each step every wallet adds up and no job disagrees with its money; at
the end the reconciler alone brings every job to an end, resolved once.
"""

import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import event

from models import jobs, ledger_audit
from models.base import utcnow
from models.dead_letters import DeadLetter, DeadLetterStatus
from models.dispatches import Lease
from models.errors import InsufficientTokens, LeaseLost, NotPossibleNow, TooManyActiveJobs
from models.jobs import ACTIVE, Job
from models.ledger import Transaction, TransactionType, Wallet
from models.settings import Settings
from tasks import catalog, outcomes, reconcile, redrive, registration, reports, submission
from tasks.backend import Backend
from tests.fixtures import emptied, for_tests, make_person, sqlite_settings
from tests.tasks import gpu, orders


class Crash(BaseException):
    """The process is gone. Nothing in our code may catch it."""


class CrashPoint:
    """Stops the process when a given transaction is about to begin."""

    def __init__(self) -> None:
        self.transactions_left: int | None = None

    def __call__(self, *_: object) -> None:
        in_a_request = threading.current_thread() is threading.main_thread()
        if self.transactions_left is not None and in_a_request:
            if self.transactions_left == 0:
                self.transactions_left = None
                raise Crash
            self.transactions_left -= 1


CRASH = st.none() | st.integers(0, 3)


class MoneyMachine(RuleBasedStateMachine):
    def __init__(self, open_backend: Callable[[], Backend]) -> None:
        super().__init__()
        self.backend = open_backend()
        catalog.seed_demo(self.backend)
        self.people = [make_person(self.backend, tokens=40) for _ in range(2)]
        self.requests: list[submission.Request] = []
        self.leases: list[Lease] = []
        self.worker = gpu.join(self.backend)
        self.crash = CrashPoint()
        for name in ("central", "pool:main"):
            event.listen(self.backend.databases.engine(name), "begin", self.crash)
            event.listen(self.backend.databases.engine(name), "checkout", self.crash_raw)

    def crash_raw(self, connection: Any, *_: object) -> None:
        """The hot path takes connections without a session: it crashes when it takes one."""
        stack = str(traceback.extract_stack())
        if self.backend.databases.on_postgres and ("hot_path" in stack or "hot_worker" in stack):
            self.crash(connection)

    def step(self, crash: int | None, action: Callable[[], object]) -> None:
        """Do it; refusals are fine, and so is dying in the middle."""
        self.crash.transactions_left = crash
        try:
            action()
        except (Crash, LeaseLost, NotPossibleNow, TooManyActiveJobs, InsufficientTokens):
            pass
        finally:
            self.crash.transactions_left = None

    @rule(who=st.integers(0, 1), crash=CRASH)
    def submit(self, who: int, crash: int | None) -> None:
        request = orders.request(self.people[who])
        self.requests.append(request)
        self.step(crash, lambda: submission.submit(self.backend, request))

    @rule(data=st.data(), crash=CRASH)
    def submit_the_same_again(self, data: st.DataObject, crash: int | None) -> None:
        if self.requests:
            request = data.draw(st.sampled_from(self.requests))
            self.step(crash, lambda: submission.submit(self.backend, request))

    @rule(crash=CRASH)
    def lease(self, crash: int | None) -> None:
        def take() -> None:
            if dispatch := orders.lease_next(self.backend):
                self.leases.append(orders.lease_of(dispatch))
                with self.backend.databases.tenant(dispatch.tenant_id) as session:
                    job = jobs.start(session, dispatch.tenant_job_id)
                outcomes.settle(self.backend, job)

        self.step(crash, take)

    @rule(crash=CRASH)
    def poll(self, crash: int | None) -> None:
        def take() -> None:
            if leased := gpu.poll(self.backend, self.worker):
                self.leases.append(orders.lease_of(leased.dispatch))

        self.step(crash, take)

    @rule(crash=CRASH)
    def leave(self, crash: int | None) -> None:
        """With whatever it holds. Its reports may still come."""
        self.step(crash, lambda: registration.deregister(self.backend, self.worker))
        self.worker = gpu.join(self.backend)

    def some_lease(self, data: st.DataObject) -> Lease:
        return data.draw(st.sampled_from(self.leases)) if self.leases else Lease(uuid4(), uuid4())

    @rule(data=st.data(), crash=CRASH)
    def complete(self, data: st.DataObject, crash: int | None) -> None:
        lease = self.some_lease(data)
        self.step(crash, lambda: outcomes.complete(self.backend, lease, outputs=[]))

    @rule(data=st.data(), crash=CRASH)
    def fail(self, data: st.DataObject, crash: int | None) -> None:
        lease = self.some_lease(data)
        self.step(
            crash,
            lambda: outcomes.fail(self.backend, lease, code="x", message="Broke.", error="x"),
        )

    @rule(data=st.data(), crash=CRASH)
    def requeue(self, data: st.DataObject, crash: int | None) -> None:
        lease = self.some_lease(data)
        self.step(crash, lambda: outcomes.requeue(self.backend, lease, reason="spot"))

    @rule(data=st.data(), crash=CRASH)
    def fail_for_now(self, data: st.DataObject, crash: int | None) -> None:
        lease, worker = self.some_lease(data), self.worker
        self.step(
            crash, lambda: reports.fail(self.backend, worker, lease, error="x", retryable=True)
        )

    @rule(data=st.data(), crash=CRASH)
    def report_outputs(self, data: st.DataObject, crash: int | None) -> None:
        lease, worker = self.some_lease(data), self.worker
        self.step(crash, lambda: reports.complete(self.backend, worker, lease, outputs=[gpu.IMAGE]))

    @rule(data=st.data(), crash=CRASH)
    def cancel(self, data: st.DataObject, crash: int | None) -> None:
        if found := self.all_jobs():
            job = data.draw(st.sampled_from(found))
            self.step(crash, lambda: outcomes.cancel(self.backend, job.tenant_id, job.id))

    @rule(minutes=st.sampled_from([0, 1, 4, 10]), crash=CRASH)
    def reconcile(self, minutes: int, crash: int | None) -> None:
        later = utcnow() + timedelta(minutes=minutes)
        self.step(crash, lambda: reconcile.run_once(self.backend, now=later))

    @rule(data=st.data(), crash=CRASH)
    def redrive(self, data: st.DataObject, crash: int | None) -> None:
        if found := self.all_letters():
            letter = data.draw(st.sampled_from(found))
            self.step(crash, lambda: redrive.redrive(self.backend, letter.id, actor="cli"))

    @rule(data=st.data(), crash=CRASH)
    def discard(self, data: st.DataObject, crash: int | None) -> None:
        if found := self.all_letters():
            letter = data.draw(st.sampled_from(found))
            self.step(crash, lambda: redrive.discard(self.backend, letter.id, actor="cli"))

    @rule(crash=CRASH)
    def lose_for_good(self, crash: int | None) -> None:
        """A job is given up, so that there is a letter to speak of."""

        def lose() -> None:
            now = utcnow()
            while orders.lease_next(self.backend, now=now):
                now += timedelta(minutes=10)
            reconcile.run_once(self.backend, now=now)

        self.step(crash, lose)

    def all_letters(self) -> list[DeadLetter]:
        with self.backend.databases.central(read_only=True) as session:
            query = session.query(DeadLetter)
            return query.order_by(DeadLetter.created_at, DeadLetter.id).all()

    def all_jobs(self) -> list[Job]:
        with self.backend.databases.pool("main") as session:
            return session.query(Job).order_by(Job.created_at, Job.id).all()

    @invariant()
    def the_books_balance(self) -> None:
        with self.backend.databases.pool("main") as session:
            assert list(ledger_audit.disagreements(session)) == []
            for wallet in session.query(Wallet):
                entries = session.query(Transaction).filter_by(wallet_id=wallet.id)
                assert wallet.balance == sum(entry.amount for entry in entries) >= 0

    @invariant()
    def one_key_is_one_job(self) -> None:
        keys = [job.idempotency_key for job in self.all_jobs()]
        assert len(keys) == len(set(keys))

    def teardown(self) -> None:
        try:
            self.everything_ends()
        finally:
            self.backend.close()

    def everything_ends(self) -> None:
        """Nobody submits or reports any more: workers that were lost give up by themselves."""
        now = utcnow()
        for _ in range(self.backend.settings.max_attempts + 2):
            now += timedelta(minutes=10)
            reconcile.run_once(self.backend, now=now)
            while orders.lease_next(self.backend, now=now):
                pass  # taken by workers that die at once
        assert [job.status for job in self.all_jobs() if job.status in ACTIVE] == []
        self.the_books_balance()
        with self.backend.databases.pool("main") as session:
            for job in session.query(Job):
                kinds = {e.type for e in session.query(Transaction).filter_by(job_id=job.id)}
                resolved = kinds - {TransactionType.JOB_RESERVE}
                assert len(resolved) == 1, (job.status, kinds)
        self.letters_tell_the_truth()

    def letters_tell_the_truth(self) -> None:
        """Whatever was ordered again and served stands on the letter of what failed, and once."""
        served: dict[str, list[Job]] = {}
        for job in self.all_jobs():
            if job.origin and orders.dispatch_of(self.backend, job):
                served.setdefault(job.origin["dispatch_id"], []).append(job)
        for letter in self.all_letters():
            made = served.pop(str(letter.dispatch_id), [])
            assert len(made) <= 1
            if made:
                assert letter.status == DeadLetterStatus.REDRIVEN
                assert letter.redriven_job_id == made[0].id
        assert served == {}


LIMITS = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def test_no_interleaving_loses_a_token_on_sqlite(sqlite_template: Path, redis_url: str) -> None:
    folders: list[tempfile.TemporaryDirectory[str]] = []

    def open_backend() -> Backend:
        folders.append(tempfile.TemporaryDirectory())
        folder = Path(folders[-1].name)
        shutil.copytree(sqlite_template, folder / "databases")
        return Backend.open(for_tests(sqlite_settings(folder / "databases"), folder, redis_url))

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: MoneyMachine(open_backend),
        settings=settings(max_examples=20, stateful_step_count=25, **LIMITS),  # type: ignore[arg-type]
    )
    assert folders
    for folder in folders:
        folder.cleanup()


def test_no_interleaving_loses_a_token_on_postgres(
    postgres_settings: Settings, tmp_path: Path, redis_url: str
) -> None:
    opened = []

    def open_backend() -> Backend:
        emptied(postgres_settings)
        opened.append(Backend.open(for_tests(postgres_settings, tmp_path, redis_url)))
        return opened[-1]

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: MoneyMachine(open_backend),
        settings=settings(max_examples=10, stateful_step_count=25, **LIMITS),  # type: ignore[arg-type]
    )
    assert opened
