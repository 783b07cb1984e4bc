"""Two words about one job at the same moment, on PostgreSQL: one of them counts, the books
add up, and the dispatch says what its job says."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from models import jobs, ledger_audit
from models.dispatches import Lease
from models.errors import LeaseLost
from models.jobs import Job
from models.ledger import Transaction, TransactionType
from models.workers import Identity
from tasks import catalog, outcomes, registration, reports
from tasks.backend import Backend
from tests.fixtures import Person, make_person
from tests.tasks import gpu, orders

ROUNDS = 6


class Story:
    """One job, held by a worker, and everything that may be said about it."""

    def __init__(self, backend: Backend, ada: Person) -> None:
        self.backend = backend
        self.job = orders.order(backend, ada)
        self.worker: Identity = gpu.join(backend)
        self.lease: Lease = gpu.take(backend, self.worker)

    def complete(self) -> object:
        return reports.complete(self.backend, self.worker, self.lease, outputs=[gpu.IMAGE])

    def fail(self) -> object:
        return reports.fail(self.backend, self.worker, self.lease, error="Broke.")

    def retry(self) -> object:
        return reports.fail(self.backend, self.worker, self.lease, error="x", retryable=True)

    def requeue(self) -> object:
        return outcomes.requeue(self.backend, self.lease, reason="spot")

    def cancel(self) -> object:
        return outcomes.cancel(self.backend, self.job.tenant_id, self.job.id)

    def leave(self) -> object:
        return registration.deregister(self.backend, self.worker)

    def resolutions(self) -> list[str]:
        with self.backend.databases.tenant(self.job.tenant_id) as session:
            assert list(ledger_audit.disagreements(session)) == []
            entries = session.query(Transaction).filter_by(job_id=self.job.id)
            return [e.type for e in entries if e.type != TransactionType.JOB_RESERVE]

    def stored(self) -> Job:
        with self.backend.databases.tenant(self.job.tenant_id) as session:
            return jobs.get(session, self.job.id)

    def follows(self) -> bool:
        """Ended alike, or both not ended."""
        dispatch, job = orders.dispatch_of(self.backend, self.job), self.stored()
        assert dispatch is not None
        if job.is_active:
            return dispatch.status in ("queued", "leased")
        return dispatch.status == job.status


def at_once(*said: Callable[[], object]) -> None:
    start = threading.Barrier(len(said))

    def say(word: Callable[[], object]) -> None:
        start.wait(timeout=30)
        with suppress(LeaseLost):  # somebody was faster
            word()

    with ThreadPoolExecutor(len(said)) as threads:
        list(threads.map(say, said))


@pytest.mark.parametrize(
    "words",
    [
        ("complete", "complete"),
        ("complete", "cancel"),
        ("complete", "requeue"),
        ("complete", "retry"),
        ("complete", "fail"),
        ("fail", "cancel"),
        ("retry", "cancel"),
        ("requeue", "requeue"),
        ("complete", "leave"),
        ("requeue", "leave", "cancel"),
    ],
    ids="-".join,
)
def test_one_of_them_counts(postgres: Backend, words: tuple[str, ...]) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    for _ in range(ROUNDS):
        story = Story(postgres, ada)
        at_once(*(getattr(story, word) for word in words))
        assert len(story.resolutions()) == (0 if story.stored().is_active else 1)
        assert story.follows()
        finish(story)
        assert len(story.resolutions()) == 1
        assert len(story.stored().outputs) <= 1


def finish(story: Story) -> None:
    """Another worker takes what is left of it."""
    if story.stored().is_active:
        worker = gpu.join(story.backend)
        lease = gpu.take(story.backend, worker)
        assert lease.dispatch_id == story.lease.dispatch_id
        reports.complete(story.backend, worker, lease, outputs=[gpu.IMAGE])
    assert not story.stored().is_active
    assert story.follows()
