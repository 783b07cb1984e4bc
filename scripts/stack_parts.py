"""The programs of a stack, how each is started, and how to see that it can be used.

Tier 0 is Redis, tier 1 what answers requests, tier 2 what does the work. They stop the other
way round: workers hand their jobs back over the API while it is still there.
"""

import sys
from collections.abc import Callable

import requests
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from models.base import utcnow
from models.session import Databases
from models.workers import Worker
from scripts import servers
from scripts.cli_serve import gunicorn_command
from scripts.stack import HOST, Stack
from scripts.supervisor import Part

CONTROL_NODE = "control@local"
ANSWER_SECONDS = 1.0
PING_SECONDS = 0.5

#: How long each tier may take to stop. Together below 10 s.
REDIS_SECONDS, WEB_SECONDS, WORKER_SECONDS = 1.5, 3.0, 4.5


def parts_of(stack: Stack, databases: Databases) -> list[Part]:
    numbers = range(stack.wishes.gpu_workers)
    parts = [] if stack.wishes.redis_url else [redis(stack)]
    parts += [web(stack), imds(stack)]
    if not stack.wishes.comfyui_url:
        parts += [comfyui(stack, number) for number in numbers]
    if stack.wishes.with_flower:
        parts.append(flower(stack))
    parts.append(control(stack))
    return parts + [gpu_worker(stack, number, databases) for number in numbers]


def redis(stack: Stack) -> Part:
    command = servers.redis_command(
        stack.state.folder("redis"), password=stack.secrets["redis_password"], persistent=True
    )
    # Its warnings are about servers, not about a stack on a laptop: they go to the file only.
    quiet = [] if stack.wishes.is_verbose else ["--logfile", str(stack.state.logs / "redis.log")]
    return Part(
        name="redis",
        command=[*command, "--port", str(stack.ports.redis), *quiet],
        environment=stack.backend_environment(),
        tier=0,
        answers=lambda pid: servers.redis_answers(stack.redis_url, pid),
        stop_seconds=REDIS_SECONDS,
    )


def web(stack: Stack, *, workers: int = 1) -> Part:
    """One worker process is enough for one person's machine: fast to start and to stop."""
    return Part(
        name="web",
        command=gunicorn_command(
            host=HOST,
            port=stack.ports.web,
            workers=workers,
            threads=16,
            graceful_seconds=2,
        ),
        environment=stack.backend_environment(),
        tier=1,
        answers=lambda _: http_answers(f"{stack.api_url}/readyz"),
        stop_seconds=WEB_SECONDS,
    )


def imds(stack: Stack) -> Part:
    """Instance metadata, so that a Spot notice can be sent to a worker."""
    return Part(
        name="imds",
        command=[sys.executable, "-m", "scripts.imds_stand_in", "--port", str(stack.ports.imds)],
        environment=stack.backend_environment(),
        tier=1,
        answers=lambda _: http_answers(stack.imds_url, status=None),
        stop_seconds=WEB_SECONDS,
    )


def comfyui(stack: Stack, number: int) -> Part:
    command = [sys.executable, "-m", "scripts.comfyui_stand_in"]
    folder = str(stack.comfyui_folder(number))
    return Part(
        name=f"comfyui-{number + 1}",
        command=[*command, "--port", str(stack.ports.comfyui[number]), "--folder", folder],
        environment=stack.worker_environment(number),
        tier=1,
        answers=lambda _: http_answers(f"{stack.comfyui_url(number)}/system_stats"),
        stop_seconds=WEB_SECONDS,
    )


def flower(stack: Stack) -> Part:
    level = "info" if stack.wishes.is_verbose else "error"  # it warns of workers not there yet
    return Part(
        name="flower",
        command=[
            *_celery("flower"),
            f"--address={HOST}",
            f"--port={stack.ports.flower}",
            f"--logging={level}",
            # The dispatch and the jobs, which Flower leaves out by itself, first of all.
            "--tasks_columns=name,args,result,state,received,runtime,worker",
        ],
        environment=stack.backend_environment(),
        tier=1,
        answers=lambda _: http_answers(f"{stack.flower_url}/healthcheck"),
        stop_seconds=WEB_SECONDS,
    )


def control(stack: Stack) -> Part:
    """The control worker with beat inside."""
    pool = ["-P", "threads", "-B", "-Q", "control", "-n", CONTROL_NODE]
    talk = ["--without-gossip", "--without-mingle", "-E"]
    schedule = stack.state.folder("beat") / "schedule"
    return Part(
        name="control",
        command=[*_celery("worker"), *pool, *talk, f"--schedule={schedule}"],
        environment=stack.backend_environment(),
        tier=2,
        answers=lambda _: node_answers(stack.redis_url, CONTROL_NODE),
        stop_seconds=WORKER_SECONDS,
    )


def _celery(command: str) -> list[str]:
    return [sys.executable, "-m", "celery", "--quiet", "-A", "tasks.app", command]


def gpu_worker(stack: Stack, number: int, databases: Databases) -> Part:
    name = stack.worker_names[number]
    return Part(
        name=f"gpu-{number + 1}",
        command=[sys.executable, "-m", "gpu_worker"],
        environment=stack.worker_environment(number),
        tier=2,
        answers=_registered(databases, name),
        stop_seconds=WORKER_SECONDS,
        before_restart=lambda: forget_notices(stack, name),
    )


def forget_notices(stack: Stack, name: str) -> None:
    """The next worker of this name is a new machine, and no Spot notice is meant for it."""
    try:
        requests.delete(f"{stack.imds_url}/control/{name}/notices", timeout=ANSWER_SECONDS)
    except requests.RequestException:
        return  # it ended as well, and comes back without any notice


def http_answers(url: str, *, status: int | None = 200) -> bool:
    """Whether a GET gets this status; None takes any."""
    try:
        answer = requests.get(url, timeout=ANSWER_SECONDS, allow_redirects=False)
    except requests.RequestException:
        return False
    return status is None or answer.status_code == status


def node_answers(broker: str, node: str) -> bool:
    with Celery("comfyfleet", broker=broker, set_as_current=False) as celery:
        try:
            # A connection of our own: one that Celery kept may be older than this Redis.
            with celery.connection_for_write() as connection:
                answers = celery.control.ping(
                    destination=[node], timeout=PING_SECONDS, connection=connection
                )
        except (OperationalError, RedisError):
            return False
    return bool(answers)


def _registered(databases: Databases, worker_id: str) -> Callable[[int], bool]:
    """Whether the backend heard of the worker since now."""
    since = utcnow()
    seen = select(Worker.id).where(Worker.worker_id == worker_id, Worker.last_seen_at >= since)

    def answers(_: int) -> bool:
        try:
            with databases.central(read_only=True) as session:
                return session.scalar(seen) is not None
        except SQLAlchemyError:
            return False

    return answers
