"""Handing a job to a worker: the lease in central, then everything it needs to run it.

    1. central       the best waiting dispatch is leased
    2. tenant pool   its job is noted as `processing`
    3. storage       the graph is read (or remembered) and filled, addresses are signed

A crash after step 1 leaves a lease that runs out. A job that ended meanwhile is settled, and
the next one is looked at. A job that can't be put together is failed and refunded. While a
database or the storage is away, jobs that need it wait aside, and no try of theirs is used up.
"""

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy.orm import Session

from models import audit, dispatches, hot_worker, jobs, lanes, logs, orders, payload, properties
from models.dispatches import Dispatch, Lease
from models.errors import DATABASE_AWAY, DependencyUnavailable, NotFound
from models.files import File
from models.jobs import Job
from models.object_paths import graph_key
from models.object_store import SignedRequest
from models.workers import Identity
from models.workflows import Recipe
from tasks import outcomes, uploads
from tasks.backend import Backend

logger = logging.getLogger(__name__)

TRIES = 10  # dispatches whose jobs had ended, or were broken, before a poll comes back empty


@dataclass(frozen=True)
class Leased:
    """A job as its worker gets it."""

    dispatch: Dispatch
    workflow: str
    graph: dict[str, Any]
    output_node_id: str | None
    assets: list[dict[str, Any]]
    output: SignedRequest

    @property
    def input_url(self) -> str | None:
        return next((asset["url"] for asset in self.assets if asset["is_primary_input"]), None)


def lease(
    backend: Backend, worker: Identity, *, providers: list[str], holds_nothing: bool = False
) -> Leased | None:
    """`holds_nothing`: the worker says so. What it was given, and never got, comes again."""
    wanted = [provider for provider in providers if provider in worker.providers]
    for _ in range(TRIES):
        dispatch = _lease(backend, worker, wanted, holds_nothing)
        if dispatch is None:
            return None
        logs.bind(**dispatch.ids)
        if leased := _prepare(backend, dispatch):
            return leased
    return None


def _lease(
    backend: Backend, worker: Identity, providers: list[str], holds_nothing: bool
) -> Dispatch | None:
    terms: dict[str, Any] = {
        "fleet_id": worker.fleet_id,
        "providers": providers,
        "workflow_ids": worker.workflow_ids,
        "worker_id": worker.worker_id,
        "lease_seconds": backend.settings.lease_seconds,
    }
    if backend.databases.on_postgres:
        return hot_worker.lease(backend.databases, **terms, holds_nothing=holds_nothing)
    with backend.databases.central() as session:
        if holds_nothing:
            _give_back(session, worker)
        dispatch = lanes.lease(session, **terms)
        if dispatch is not None:
            if dispatch.was_taken_over:
                outcomes.note_lost_lease(session, dispatch, attempt=dispatch.attempts - 1)
            audit.record(
                session,
                "job.lease",
                actor=worker.actor,
                tenant_id=dispatch.tenant_id,
                worker_id=worker.worker_id,
                dispatch_id=dispatch.id,
                trace_id=dispatch.trace_id,
                attempt=dispatch.attempts,
            )
    return dispatch


def _give_back(session: Session, worker: Identity) -> None:
    reason = dispatches.NOTHING_HELD
    given = dispatches.give_back(session, fleet_id=worker.fleet_id, worker_id=worker.worker_id)
    for dispatch in given:
        outcomes.note(session, "job.requeue", dispatch, actor=worker.actor, reason=reason)


def _prepare(backend: Backend, dispatch: Dispatch) -> Leased | None:
    try:
        job, media = _start(backend, dispatch)
    except (*DATABASE_AWAY, OSError):
        _postpone(backend, dispatch)
        raise
    except Exception as error:
        _refuse(backend, dispatch, error)
        return None
    if not job.is_active:
        outcomes.settle(backend, job)
        return None
    backend.news.tell(job.id)
    try:
        return _put_together(backend, dispatch, job, media)
    except (*DATABASE_AWAY, DependencyUnavailable) as away:
        what = "storage" if isinstance(away, DependencyUnavailable) else "database"
        outcomes.requeue(
            backend,
            lease_of(dispatch),
            reason=f"the {what} does not answer",
            pause_seconds=backend.settings.retry_seconds,
        )
        raise
    except Exception as error:
        _refuse(backend, dispatch, error)
        return None


def _refuse(backend: Backend, dispatch: Dispatch, error: Exception) -> None:
    """It will not run, however often it is tried. Called while `error` is handled."""
    logger.exception("Job %s can't be put together.", dispatch.tenant_job_id)
    told = f"{type(error).__name__}: {error}"
    try:
        outcomes.fail(
            backend,
            lease_of(dispatch),
            code="not_runnable",
            message="The job could not be prepared. Your tokens were given back.",
            error=told,
        )
    except NotFound:  # not even a job is there: no money to give back, nobody to tell
        outcomes.end_without_job(backend, dispatch.id, error=told)


def _postpone(backend: Backend, dispatch: Dispatch) -> None:
    """The job's pool is away, so only central is told; the job was never started."""
    reason = "its database does not answer"
    with backend.databases.central() as session:
        dispatch = dispatches.requeue(
            session,
            lease_of(dispatch),
            reason=reason,
            pause_seconds=backend.settings.retry_seconds,
        )
        outcomes.note(session, "job.requeue", dispatch, actor=outcomes.SYSTEM, reason=reason)


def lease_of(dispatch: Dispatch) -> Lease:
    if dispatch.lease_token is None:
        raise ValueError(f"The dispatch {dispatch.id} is not leased.")
    return Lease(dispatch.id, dispatch.lease_token)


def _start(backend: Backend, dispatch: Dispatch) -> tuple[Job, dict[str, File]]:
    """The job, noted as `processing`, and the files that its media properties name."""
    if backend.databases.on_postgres:
        started = hot_worker.start(backend.databases, dispatch.tenant_id, dispatch.tenant_job_id)
        if started is not None and (media := _usual_media(*started)) is not None:
            return started[0], media
    with backend.databases.tenant(dispatch.tenant_id) as session:
        job = jobs.start(session, dispatch.tenant_job_id)
        return job, orders.media_files(session, job) if job.is_active else {}


def _usual_media(job: Job, of_video: File | None) -> dict[str, File] | None:
    """No media, or the video's own file. None if the job needs others."""
    names, primary = [*job.input_payload["media"]], job.input_payload["primary"]
    if not names:
        return {}
    return {primary: of_video} if of_video is not None and names == [primary] else None


def _put_together(backend: Backend, dispatch: Dispatch, job: Job, media: dict[str, File]) -> Leased:
    kept = _recipe(backend, job.input_payload["content_hash"])
    rendered = payload.render(
        kept.recipe.graph,
        kept.properties,
        job.input_payload["values"],
        output_prefix=f"job-{job.id}-{dispatch.attempts}/out",
    )
    workflow = uploads.workflow_of(backend, dispatch.workflow_id)
    return Leased(
        dispatch=dispatch,
        workflow=workflow.slug,
        graph=rendered.graph,
        output_node_id=kept.recipe.output_node_id,
        assets=[
            _asset(backend, rendered.asset_tokens[name], file, job.input_payload["primary"] == name)
            for name, file in media.items()
        ],
        output=uploads.expected(backend, dispatch),
    )


def _asset(backend: Backend, token: str, file: File, is_primary: bool) -> dict[str, Any]:
    return {
        "placeholder": token,
        "url": backend.store.presign_get(
            file.object_key, seconds=backend.settings.url_seconds, filename=file.filename
        ),
        "content_hash": file.content_hash,
        "filename": file.filename,
        "mime_type": file.mime_type,
        "is_primary_input": is_primary,
    }


@dataclass(frozen=True)
class _Kept:
    recipe: Recipe
    properties: list[properties.Property]


@lru_cache(maxsize=256)
def _recipe(backend: Backend, content_hash: str) -> _Kept:
    """Remembered for as long as there is room: what lies under a hash never changes."""
    recipe = Recipe.from_bytes(backend.store.read(graph_key(content_hash)))
    return _Kept(recipe, properties.parse_properties(recipe.properties))
