"""A control plane as it is run for a large fleet: web, a control worker with beat, PostgreSQL
with fsync, Redis. Beside it an S3 server, which stands for somebody else's storage.

Its settings are those that docs/operations.md names for large fleets.
"""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis
from sqlalchemy import text

from models import fleets
from scripts import servers
from scripts.bench_bed import Bed, bed
from scripts.bench_processes import Used, parent_of, used_by
from scripts.cli_serve import gunicorn_command
from scripts.server_process import free_port
from scripts.stack_parts import CONTROL_NODE, http_answers, node_answers
from tasks import catalog

FLEET, SECRET, STAGE = "gpu-default", "a-secret-for-the-bench-alone", "dev"
MOST_WORKERS = 10_000
WEB_PROCESSES, WEB_THREADS = 2, 8
UNLIMITED = " ".join(
    f"{name}=1000000/minute" for name in ("auth", "register", "submit", "upload", "api", "worker")
)


@dataclass(frozen=True)
class ControlPlane:
    bed: Bed
    url: str
    storage_url: str
    roots: dict[str, int]  # process ids: each with all that is below it

    def used(self) -> dict[str, Used]:
        return {part: used_by(root) for part, root in self.roots.items()}

    def connections(self) -> dict[str, int]:
        with self.bed.backend.databases.central(read_only=True) as session:
            postgres = session.scalar(
                text("SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL")
            )
        with Redis.from_url(self.bed.settings.redis_url) as redis:
            facts = redis.info()
        return {
            "postgres_connections": int(postgres or 0),
            "redis_connections": int(facts["connected_clients"]),
            "redis_commands_per_second": int(facts["instantaneous_ops_per_sec"]),
        }


@contextmanager
def control_plane(*, pace: float) -> Iterator[ControlPlane]:
    """`pace`: how much faster than ours the workers' clock runs. Their leases shrink with it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="comfyfleet-bench-s3-")))
        (folder / "objects" / "bench").mkdir(parents=True)
        storage = stack.enter_context(servers.s3(folder))
        os.environ |= {
            "AWS_ACCESS_KEY_ID": storage.access_key,
            "AWS_SECRET_ACCESS_KEY": storage.secret_key,
        }
        port = free_port()
        made = stack.enter_context(
            bed(
                stage=STAGE,
                log_level="warning",
                public_url=f"http://127.0.0.1:{port}",
                storage_url="s3://bench",
                s3_endpoint_url=storage.endpoint_url,
                max_active_jobs=10**9,
                fleet_secrets=SECRET,
                rate_limits=UNLIMITED,
                lease_seconds=max(round(180 / pace), 1),
                worker_gone_seconds=max(round(180 / pace), 1),
                reconcile_seconds=max(round(10 / pace), 1),
            )
        )
        catalog.seed_demo(made.backend)
        with made.backend.databases.central() as session:
            fleets.put(
                session, stage=STAGE, slug=FLEET, name="Large fleet", max_workers=MOST_WORKERS
            )
        url = f"http://127.0.0.1:{port}"
        roots = {
            "web": stack.enter_context(_web(made, port)),
            "control": stack.enter_context(_control(made)),
            "postgres": _postmaster(made),
            "redis": _redis(made),
        }
        yield ControlPlane(made, url, storage.endpoint_url, roots)


def allow_open_files(count: int) -> None:
    """For us and for whoever is started by us: a thousand workers are thousands of connections."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= count:
        return
    if most not in (resource.RLIM_INFINITY, max(most, count)):
        raise RuntimeError(f"This needs {count} open files; `ulimit -Hn` allows {most}.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))


def _web(made: Bed, port: int) -> AbstractContextManager[int]:
    command = gunicorn_command(
        host="127.0.0.1",
        port=port,
        workers=WEB_PROCESSES,
        threads=WEB_THREADS,
    )
    return made.program("web", command, lambda: http_answers(f"http://127.0.0.1:{port}/readyz"))


def _control(made: Bed) -> AbstractContextManager[int]:
    command = [
        sys.executable, "-m", "celery", "--quiet", "-A", "tasks.app", "worker", "-B",
        "-P", "threads", "-c", "2", "-Q", "control", "-n", CONTROL_NODE, "-E",
        "--without-gossip", "--without-mingle",
        f"--schedule={made.folder / 'beat'}",
    ]  # fmt: skip
    return made.program(
        "control", command, lambda: node_answers(made.settings.redis_url, CONTROL_NODE)
    )


def _postmaster(made: Bed) -> int:
    with made.backend.databases.central(read_only=True) as session:
        return parent_of(session.scalars(text("SELECT pg_backend_pid()")).one())


def _redis(made: Bed) -> int:
    with Redis.from_url(made.settings.redis_url) as redis:
        return int(redis.info("server")["process_id"])
