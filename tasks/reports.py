"""What workers report of the jobs they hold. Each may be sent again and counts once."""

import logging

from models.dispatches import Dispatch, DispatchStatus, Lease
from models.errors import DependencyUnavailable
from models.files import Output
from models.jobs import Job
from models.workers import Identity
from tasks import error_text, outcomes, uploads
from tasks.backend import Backend

logger = logging.getLogger(__name__)


def complete(
    backend: Backend,
    worker: Identity,
    lease: Lease,
    *,
    outputs: list[uploads.Made],
    provider_job_id: str | None = None,
    timings: dict[str, float] | None = None,
) -> Job:
    dispatch = outcomes.check(backend, lease)
    stored = uploads.located(backend, dispatch, outputs)
    job = outcomes.complete(
        backend,
        lease,
        outputs=stored,
        held=dispatch,
        provider_job_id=provider_job_id,
        actor=worker.actor,
        outputs_made=len(stored),
        timings=timings or {},
    )
    if dispatch.status == DispatchStatus.LEASED:
        backend.checks.add(_look_at_outputs, (backend, dispatch, stored))
    return job


def fail(
    backend: Backend,
    worker: Identity,
    lease: Lease,
    *,
    error: str,
    trace: str | None = None,
    code: str | None = None,
    retryable: bool = False,
) -> str:
    """`retryable`: the job is not to blame, and another worker may well finish it."""
    if retryable:
        told = error_text.for_operators(error, trace)
        waiting = outcomes.retry(backend, lease, error=told, actor=worker.actor)
        if waiting is not None:
            return str(waiting.status)
        # Whatever the worker calls it: that tries were the limit decides what becomes of it.
        code = "attempts_exhausted"
    job = outcomes.fail(
        backend,
        lease,
        code=code or "execution_failed",
        message=error_text.for_users(error),
        error=error_text.for_operators(error),
        trace=error_text.for_operators(trace) if trace else None,
        actor=worker.actor,
    )
    return str(job.status)


def _look_at_outputs(completed: list[tuple[Backend, Dispatch, list[Output]]]) -> None:
    """Is what was promised really there? Nobody waits for this; operators are told."""
    for backend, dispatch, outputs in completed:
        for output in outputs:
            try:
                problem = _problem_with(backend, output)
            except DependencyUnavailable:
                problem = "the storage did not answer when it was looked for"
            if problem:
                _tell(backend, dispatch, output, problem)


def _problem_with(backend: Backend, output: Output) -> str | None:
    found = backend.store.head(output.object_key)
    if found is None:
        return "it is not in the storage"
    if found.size_bytes != output.size_bytes:
        return f"it has {found.size_bytes} bytes, {output.size_bytes} were reported"
    return None


def _tell(backend: Backend, dispatch: Dispatch, output: Output, problem: str) -> None:
    logger.error("Output %s of job %s: %s.", output.name, dispatch.tenant_job_id, problem)
    with backend.databases.central() as session:
        outcomes.note(
            session,
            "output.suspect",
            dispatch,
            actor=outcomes.SYSTEM,
            output=output.name,
            problem=problem,
        )
