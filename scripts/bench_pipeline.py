"""Jobs through the whole pipeline, against bare Celery and against ComfyUI driven directly.

PostgreSQL, Redis, gunicorn, one GPU worker and a ComfyUI stand-in, all real processes. The job
is the smallest there is (a card of 64 by 64 pixels), so that what is measured is us.
"""

import json
import statistics
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sqlalchemy import func, select

from models import ledger, users
from models.jobs import Job, JobStatus
from scripts.bench_anchors import BareCelery, Direct, memory_mb, prompts
from scripts.bench_bed import Bed, bed
from scripts.bench_result import Result, progress
from scripts.comfyui_stand_in.process import comfyui
from scripts.server_process import free_port
from tasks import catalog, submission

ROUNDS = 5
JOBS = 200
NOOPS = 2000
SINGLE = 60
PAUSE_SECONDS = 0.1
FLEET, SECRET = "gpu-default", "a-secret-for-the-bench-alone"
CARD = {"width": 64, "height": 64}


@dataclass(frozen=True)
class Stage:
    """The processes under measurement."""

    bed: Bed
    port: int
    comfyui_url: str
    worker: int  # process ids
    noop: int
    user: users.User
    token: str


def run() -> Result:
    with ExitStack() as stack:
        port = free_port()
        made = stack.enter_context(
            bed(
                max_active_jobs=10**9,
                fleet_secrets=SECRET,
                public_url=f"http://127.0.0.1:{port}",
                rate_limits="auth=9999/minute register=9999/minute submit=99999/minute "
                "upload=9999/minute api=99999/minute worker=99999/minute",
            )
        )
        catalog.seed_demo(made.backend)
        stage = _processes(stack, made, port)
        return _measure(stage)


def _processes(stack: ExitStack, made: Bed, port: int) -> Stage:
    progress("starting web, ComfyUI, a GPU worker and a bare Celery worker")
    stack.enter_context(made.gunicorn("webapp.wsgi:app", port=port))
    drawn = stack.enter_context(comfyui(made.folder / "comfyui"))
    worker_environment = {
        "COMFYFLEET_BACKEND_URL": f"http://127.0.0.1:{port}",
        "COMFYFLEET_FLEET_SLUG": FLEET,
        "COMFYFLEET_FLEET_SECRET": SECRET,
        "COMFYFLEET_WORKER_ID": "bench-1",
        "COMFYFLEET_COMFYUI_URL": drawn.url,
        "COMFYFLEET_STATE_DIR": str(made.folder / "worker"),
        "COMFYFLEET_STAGE": made.settings.stage,
    }
    worker = stack.enter_context(_process(made, ["gpu_worker"], "worker", worker_environment))
    bare = ["celery", "-A", "scripts.bench_noop", "worker", "-P", "threads", "-c", "1", "-E",
            "--without-gossip", "--without-mingle", "-l", "WARNING"]  # fmt: skip
    noop = stack.enter_context(_process(made, bare, "noop", {}))
    user, token = _customer(made)
    stage = Stage(made, port, drawn.url, worker, noop, user, token)
    _submit_over_http(stage)
    _wait_for_jobs(stage, 1)  # everything is connected by now
    return stage


@contextmanager
def _process(made: Bed, module: list[str], name: str, environment: dict[str, str]) -> Iterator[int]:
    with (made.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            env=made.environment() | environment,
            stdout=log,
            stderr=log,
        )
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(20)


def _customer(made: Bed) -> tuple[users.User, str]:
    with made.backend.databases.central() as session:
        user = users.register(
            session,
            email="bench@example.com",
            password_hash="none",  # noqa: S106 - nobody signs in with it
            name="",
            pool="main",
        )
        token = users.issue_token(session, user, days=1)
    with made.backend.databases.tenant(user.tenant_id) as session:
        ledger.credit(session, user_id=user.id, amount=10**9, provider_transaction_id="bench")
    return user, token


def _measure(stage: Stage) -> Result:
    """In turns, so that all see the same moods of the machine."""
    bare, direct = BareCelery(stage.bed.settings.redis_url), Direct(stage.comfyui_url)
    samples: dict[str, list[float]] = {
        name: [] for name in ("rate", "bare_rate", "start", "bare_start", "whole", "direct")
    }
    for number in range(ROUNDS):
        progress(f"round {number + 1} of {ROUNDS}")
        samples["rate"].append(_rate(stage))
        samples["bare_rate"].append(bare.rate(NOOPS))
        for _ in range(SINGLE // ROUNDS):
            start, whole = _single(stage)
            samples["start"].append(start)
            samples["whole"].append(whole)
            samples["bare_start"].append(bare.start_seconds())
            samples["direct"].append(direct.seconds())
            time.sleep(PAUSE_SECONDS)
    direct.close()
    median = {name: statistics.median(values) for name, values in samples.items()}
    figures = {
        "pipeline_rate_ratio": median["rate"] / median["bare_rate"],
        "pipeline_jobs_per_second": median["rate"],
        "bare_celery_tasks_per_second": median["bare_rate"],
        "start_latency_ratio": median["start"] / median["bare_start"],
        "start_latency_ms": median["start"] * 1000,
        "bare_start_latency_ms": median["bare_start"] * 1000,
        "overhead_ms": (median["whole"] - median["direct"]) * 1000,
        "direct_ms": median["direct"] * 1000,
        "gpu_worker_idle_mb": memory_mb(stage.worker),
        "bare_celery_idle_mb": memory_mb(stage.noop),
    }
    return Result("pipeline", figures, samples)


def _rate(stage: Stage) -> float:
    """Jobs a second while the queue is never empty, from the moment all of them wait."""
    before = _ended(stage)
    for _ in range(JOBS):
        request = submission.Request(
            tenant_id=stage.user.tenant_id,
            user_id=stage.user.id,
            effect="colour-card",
            idempotency_key=uuid.uuid4().hex,
            inputs=CARD,
        )
        submission.submit(stage.bed.backend, request)
    done, begin = _ended(stage), time.perf_counter()
    while (now_done := _ended(stage)) < before + JOBS:
        time.sleep(0.1)  # looking costs the measured ones their time
    return (now_done - done) / (time.perf_counter() - begin)


def _single(stage: Stage) -> tuple[float, float]:
    """One job on an idle worker: seconds to ComfyUI's /prompt, and to the end."""
    begin = time.time()
    job = _submit_over_http(stage)
    completed = _completed_at(stage, job)
    return prompts(stage.comfyui_url)[-1]["received_at"] - begin, completed - begin


def _submit_over_http(stage: Stage) -> str:
    body = {"effect_id": "colour-card", "inputs": CARD, "idempotency_key": uuid.uuid4().hex}
    request = urllib.request.Request(
        f"http://127.0.0.1:{stage.port}/api/ai-jobs",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {stage.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own address
        return str(json.load(answer)["id"])


def _completed_at(stage: Stage, job_id: str) -> float:
    for _ in range(2000):
        with stage.bed.backend.databases.tenant(stage.user.tenant_id) as session:
            at = session.scalar(select(Job.completed_at).where(Job.id == uuid.UUID(job_id)))
        if at is not None:
            return at.timestamp()
        time.sleep(0.005)
    raise RuntimeError(f"The job {job_id} did not end.")


def _ended(stage: Stage) -> int:
    query = select(func.count()).select_from(Job).where(Job.status == JobStatus.COMPLETED)
    with stage.bed.backend.databases.tenant(stage.user.tenant_id) as session:
        return session.scalars(query).one()


def _wait_for_jobs(stage: Stage, count: int) -> None:
    for _ in range(600):
        if _ended(stage) >= count:
            return
        time.sleep(0.1)
    log = (stage.bed.folder / "worker.log").read_text()
    raise RuntimeError(f"The worker finished nothing:\n{log[-2000:]}")
