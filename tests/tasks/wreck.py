"""A house in which everything was cut short at once, and how it must look when it is mended.

What is cut short is made the ordinary way up to the cut. Then time passes: every time in every
row, and of every object, moves back, so that programs of today find a wreck of days ago.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from redis import Redis
from sqlalchemy import DateTime, text

from models import dispatches, files, fleets, jobs, ledger, ledger_audit, object_paths
from models import orders as taking
from models.audit import AuditLog
from models.dispatches import Dispatch, Lease
from models.files import File
from models.jobs import Job
from models.ledger import Transaction
from models.schema import METADATA
from models.session import make_engine
from models.workers import Worker
from models.workflows import Recipe
from tasks import catalog, outcomes, schedule, submission, workflow_uploads
from tasks.backend import Backend
from tests.fixtures import Person, emptied, make_person
from tests.tasks import gpu, media, orders

TOKENS = 10_000
A_MONTH = timedelta(days=32)


def pass_time(backend: Backend, time: timedelta) -> None:
    """As the owner: to the application transactions and the audit log are read-only."""
    urls = {"central": backend.settings.central_url, "tenant": backend.settings.pools["main"]}
    for family, url in urls.items():
        owner = make_engine(url, as_owner=True)
        with owner.begin() as connection:
            connection.execute(text("SET LOCAL app.tenant_id = '*'"))
            for table in METADATA[family].tables.values():
                times = [column.name for column in table.columns if _is_time(column)]
                moved = ", ".join(f"{name} = {name} - :time" for name in times)
                if moved:
                    connection.execute(text(f"UPDATE {table.name} SET {moved}"), {"time": time})
        owner.dispose()
    for path in Path(backend.settings.storage_url.removeprefix("file://")).rglob("*.*"):
        was = path.stat().st_mtime
        os.utime(path, (was, was - time.total_seconds()))


def _is_time(column: Any) -> bool:
    return isinstance(getattr(column.type, "impl", column.type), DateTime)


def run_all(backend: Backend, *, only: Collection[str] = ()) -> None:
    """Every control task once, as a control worker that starts does."""
    for task in schedule.control_tasks(backend.settings):
        if task.name in only or not only:
            task.run_once(backend)


@dataclass
class Wreck:
    """The jobs of a house, by what was cut short, and where they must end up."""

    backend: Backend
    ada: Person
    jobs: dict[str, Job]
    age: timedelta

    def check(self) -> None:
        """After the control tasks: each job is where it must be, and the books say why."""
        for what, job in self.jobs.items():
            status, dispatch_status = MENDED[what]
            dispatch = orders.dispatch_of(self.backend, job)
            found = (media.stored(self.backend, job).status, dispatch and dispatch.status)
            assert found == (status, dispatch_status), what
        self.check_money()
        self._check_what_was_told()
        with self.backend.databases.central(read_only=True) as session:
            is_forgotten = session.query(Worker).count() == 0
            assert is_forgotten == (self.age > timedelta(hours=2))
            open_ones = session.query(Dispatch).filter(Dispatch.status.in_(dispatches.OPEN))
            waiting = [row.fleet_id for row in open_ones]
            assert len(set(waiting)) == 1  # nobody waits where nobody serves
        self.backend.later.close()
        with Redis.from_url(self.backend.settings.redis_url) as redis:
            tickets = redis.llen(gpu.FLEET)
        assert isinstance(tickets, int)
        assert tickets >= len(waiting)

    def check_money(self) -> None:
        with self.backend.databases.tenant(self.ada.tenant_id) as session:
            assert list(ledger_audit.disagreements(session)) == []
            paid = sum(job.price_tokens for job in session.query(Job) if not job.refunded_at)
            assert ledger.balance(session, user_id=self.ada.user_id) == TOKENS - paid
            for job in session.query(Job):
                entries = session.query(Transaction).filter_by(job_id=job.id).count()
                assert entries == (1 if job.is_active else 2), job.status

    def _check_what_was_told(self) -> None:
        """Each end and each lost lease stands in the audit log once."""
        once = ("job.complete", "job.fail", "job.cancel", "job.lease_expired")
        with self.backend.databases.central(read_only=True) as session:
            rows = session.query(AuditLog).filter(AuditLog.event.in_(once))
            told = [(row.event, row.dispatch_id, row.details.get("attempt")) for row in rows]
        assert len(told) == len(set(told))

    def check_storage(self) -> None:
        """When nothing is open any more, and its time is over, no object is left."""
        with self.backend.databases.tenant(self.ada.tenant_id) as session:
            active = [job.id for job in session.query(Job) if job.is_active]
        for job_id in active:
            outcomes.cancel(self.backend, self.ada.tenant_id, job_id)
        pass_time(self.backend, A_MONTH)
        run_all(self.backend)
        pass_time(self.backend, A_MONTH)
        run_all(self.backend)
        far = datetime.now().astimezone() + A_MONTH
        left = {
            key for folder in ("uploads/", "tenants/") for key in _keys(self.backend, folder, far)
        }
        assert left == set()
        with self.backend.databases.tenant(self.ada.tenant_id) as session:
            assert [file.purged_at for file in session.query(File)].count(None) == 0
        self.check_money()


def _keys(backend: Backend, prefix: str, before: datetime) -> Iterator[str]:
    return backend.store.stale(prefix, before)


#: What was cut short: the job and its dispatch as they must be in the end.
MENDED = {
    "submit, before its dispatch": ("queued", "queued"),
    "submit of what nobody serves": ("failed", None),
    "a run, by the loss of its worker": ("queued", "queued"),
    "the last try, by the loss of its worker": ("failed", "failed"),
    "a good end, between the databases": ("completed", "completed"),
    "a bad end, between the databases": ("failed", "failed"),
    "a cancel, between the databases": ("cancelled", "cancelled"),
    "a good end of what waits again": ("completed", "completed"),
    "a wait, by a move of its workflow": ("queued", "queued"),
    "a wait, by a backup without its dispatch": ("queued", "queued"),
    "a run, by a backup in which it had not ended": ("failed", "completed"),
    "nothing": ("completed", "completed"),
    "nothing, with an upload": ("completed", "completed"),
}


def make(backend: Backend, *, age: timedelta = A_MONTH) -> Wreck:
    """On an empty PostgreSQL; `backend` allows many active jobs."""
    emptied(backend.settings)
    catalog.seed_demo(backend)
    ada = make_person(backend, tokens=TOKENS)
    made = Making(backend, ada)
    found = {what: getattr(made, how)() for what, how in MAKING.items()}
    made.leave_media()
    backend.later.close()
    backend.checks.close()
    with Redis.from_url(backend.settings.redis_url) as redis:
        redis.flushdb()
    pass_time(backend, age)
    assert set(found) == set(MENDED)
    return Wreck(backend, ada, found, age)


MAKING = {
    "nothing": "completed",
    "nothing, with an upload": "completed_with_upload",
    "a run, by the loss of its worker": "silent",
    "the last try, by the loss of its worker": "exhausted",
    "a good end, between the databases": "half_completed",
    "a bad end, between the databases": "half_failed",
    "a good end of what waits again": "completed_while_waiting",
    "a run, by a backup in which it had not ended": "forgotten",
    "a cancel, between the databases": "half_cancelled",
    "submit, before its dispatch": "submitting",
    "submit of what nobody serves": "unserved",
    "a wait, by a move of its workflow": "stranded",
    "a wait, by a backup without its dispatch": "lonely",
}


class Making:
    def __init__(self, backend: Backend, ada: Person) -> None:
        self.backend, self.ada = backend, ada
        self.worker = gpu.join(backend)

    def ordered(self) -> Job:
        job = orders.order(self.backend, self.ada)
        self.backend.later.close()
        return job

    def held(self) -> tuple[Job, Lease]:
        """At work, with something uploaded already."""
        job = self.ordered()
        lease = gpu.take(self.backend, self.worker)
        self.backend.store.write(self.key(job, lease), b"left", "image/png")
        return job, lease

    def key(self, job: Job, lease: Lease) -> str:
        return object_paths.output_key(job.tenant_id, job.id, "image/png", lease_token=lease.token)

    def completed(self) -> Job:
        """By its second worker; the first one left something."""
        job, lease = self.held()
        outcomes.requeue(self.backend, lease, reason="spot")
        media.complete(self.backend, self.worker)
        return job

    def completed_with_upload(self) -> Job:
        video = media.upload(self.backend, self.ada)
        return media.result(self.backend, self.ada, video.id)

    def silent(self) -> Job:
        return self.held()[0]

    def exhausted(self) -> Job:
        job, lease = self.held()
        with self.backend.databases.central() as session:
            session.get_one(Dispatch, lease.dispatch_id).max_attempts = 1
        return job

    def half_completed(self) -> Job:
        job, lease = self.held()
        made = files.Output(
            name="a.png",
            kind="image",
            mime_type="image/png",
            size_bytes=4,
            object_key=self.key(job, lease),
            content_hash="0" * 64,
        )
        with self.backend.databases.tenant(job.tenant_id) as session:
            jobs.complete(session, job.id, outputs=[made])
        return job

    def half_failed(self) -> Job:
        job, _ = self.held()
        with self.backend.databases.tenant(job.tenant_id) as session:
            jobs.fail(session, job.id, code="x", message="Broke.")
        return job

    def half_cancelled(self) -> Job:
        job = self.ordered()
        with self.backend.databases.tenant(job.tenant_id) as session:
            jobs.cancel(session, job.id)
        return job

    def completed_while_waiting(self) -> Job:
        """Its lease was taken back at the moment in which it completed."""
        job = self.half_completed()
        dispatch = orders.dispatch_of(self.backend, job)
        assert dispatch is not None
        with self.backend.databases.central() as session:
            dispatches.requeue(session, orders.lease_of(dispatch), reason="spot")
        return job

    def forgotten(self) -> Job:
        job = self.ordered()
        with self.backend.databases.central() as session:
            dispatch = dispatches.find_by_job(session, job.tenant_id, job.id)
            assert dispatch is not None
            dispatches.complete(session, dispatch.id)
        return job

    def submitting(self, workflow_id: UUID | None = None) -> Job:
        with self.backend.databases.central(read_only=True) as session:
            stage = self.backend.settings.stage
            offer = submission.find_offer(session, orders.EFFECT, stage=stage)
        order = submission._order(orders.request(self.ada), offer)
        if workflow_id is not None:
            order = taking.Order(**vars(order) | {"workflow_id": workflow_id})
        with self.backend.databases.tenant(self.ada.tenant_id) as session:
            return taking.submit(session, order, max_active=None).job

    def unserved(self) -> Job:
        recipe = Recipe(graph={}, output_node_id=None, properties=[])
        nobodys = workflow_uploads.put(
            self.backend, slug="nobodys", name="N", kind="image", recipe=recipe
        )
        return self.submitting(nobodys.workflow.id)

    def stranded(self) -> Job:
        job = self.ordered()
        with self.backend.databases.central() as session:
            elsewhere = fleets.put(session, stage="dev", slug="elsewhere", name="E")
            dispatch = dispatches.find_by_job(session, job.tenant_id, job.id)
            assert dispatch is not None
            dispatch.fleet_id = elsewhere.id
        return job

    def lonely(self) -> Job:
        """Its dispatch is there, but speaks of a job that is not."""
        job = self.ordered()
        with self.backend.databases.central() as session:
            dispatch = dispatches.find_by_job(session, job.tenant_id, job.id)
            assert dispatch is not None
            dispatch.tenant_job_id = uuid4()
        return job

    def leave_media(self) -> None:
        """An upload for nothing, one that was never finished, one deleted, one sent again."""
        media.upload(self.backend, self.ada)
        for number in range(3):
            file_id = uuid4()
            key = object_paths.upload_key(self.ada.tenant_id, file_id, "image/png")
            self.backend.store.write(key, b"sent", "image/png")
            if number == 2:
                continue  # nobody announced it
            with self.backend.databases.tenant(self.ada.tenant_id) as session:
                file = files.announce(
                    session,
                    user_id=self.ada.user_id,
                    filename="a.png",
                    mime_type="image/png",
                    size_bytes=4,
                    file_id=file_id,
                    object_key=key,
                )
                if number == 1:
                    files.mark(session, [file])
