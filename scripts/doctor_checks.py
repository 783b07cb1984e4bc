"""What can be wrong with an installation, one check each, in plain words.

A check returns the sentence that all is well, or raises Bad with what is wrong and what to do.
What a check writes to see whether it can, it takes back at once.
"""

import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from importlib import metadata
from urllib.parse import urlsplit
from uuid import uuid4

import requests
from packaging.requirements import Requirement
from redis import exceptions as redis_errors
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from models import migrate
from models.base import utcnow
from models.errors import Refusal
from models.fleets import Fleet
from models.object_paths import graph_key
from models.object_store import open_store
from models.session import Databases
from models.settings import BadSetting, Settings
from models.workers import Worker
from scripts.stack_wishes import Unusable, comfyui_version, redis_client, redis_version
from tasks import control as control_runs

OLDEST_PYTHON = (3, 11)
SECRET_KEY_LENGTH = 32
SEEN_SECONDS = 120
CLOCK_SECONDS = 5.0
ANSWER_SECONDS = 3.0


class Bad(Exception):
    """What is wrong, and what to do about it."""


@dataclass(frozen=True, kw_only=True)
class Patient:
    settings: Settings
    databases: Databases
    comfyui_url: str | None


@dataclass(frozen=True)
class Finding:
    check: str
    is_ok: bool
    sentence: str


def examine(patient: Patient) -> Iterator[Finding]:
    for name, check in CHECKS.items():
        try:
            yield Finding(name, True, check(patient))
        except (Bad, BadSetting, Unusable) as wrong:
            yield Finding(name, False, str(wrong))


def python(_: Patient) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        raise Bad(f"Python {version} is too old. Make .venv with Python 3.11 or newer.")
    return f"Python {version}"


def packages(_: Patient) -> str:
    try:
        wanted = [Requirement(line) for line in metadata.requires("comfyfleet") or []]
    except metadata.PackageNotFoundError:
        raise Bad("comfyfleet itself is not installed. Run scripts/environment.") from None
    extras = [{"extra": "web"}, {"extra": "control"}, {"extra": "worker"}, {"extra": "embedded"}]
    needed = {
        one.name: one
        for one in wanted
        if one.name != "comfyfleet"
        and (one.marker is None or any(one.marker.evaluate(extra) for extra in extras))
    }
    if missing := sorted(name for name, one in needed.items() if not _is_installed(one)):
        raise Bad(
            f"Packages are missing or too old: {', '.join(missing)}. Run scripts/environment."
        )
    return f"{len(needed)} packages"


def _is_installed(wanted: Requirement) -> bool:
    try:
        return wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def secret_key(patient: Patient) -> str:
    if len(patient.settings.secret_key) < SECRET_KEY_LENGTH:
        raise Bad("COMFYFLEET_SECRET_KEY is missing or shorter than 32 characters: draw a new one.")
    return "the secret key is long enough"


def database(patient: Patient) -> str:
    try:
        states = migrate.states(patient.databases, patient.settings)
    except DBAPIError as error:
        told = str(error.orig).strip()
        raise Bad(f"A database does not answer: {told}. Check its URL and its server.") from None
    if stale := [state.database for state in states if not state.is_current]:
        raise Bad(f"Not migrated: {', '.join(stale)}. Run `comfyfleet db migrate`.")
    return f"{len(states)} databases answer and have the schema of this code"


def redis(patient: Patient) -> str:
    return f"{redis_version(patient.settings.redis_url)} answers"


def broker(patient: Patient) -> str:
    """Tickets can be sent. Pushed and taken back in one step that no worker can see."""
    queue = _fleets(patient)[0] if _fleets(patient) else "gpu-default"
    try:
        with redis_client(patient.settings.redis_url) as client:
            both = client.pipeline(transaction=True)
            both.lpush(queue, "doctor")
            both.lpop(queue)
            both.execute()
    except (redis_errors.ConnectionError, redis_errors.TimeoutError):
        raise Bad("No ticket can be sent: see Redis above.") from None
    except redis_errors.RedisError as error:
        raise Bad(
            f"No ticket can be sent to {queue}: {error}. Check the rights of the Redis user."
        ) from None
    return f"tickets can be sent to {queue}"


def storage(patient: Patient) -> str:
    body = f'"doctor {uuid4()}"'.encode()
    key = graph_key(sha256(body).hexdigest())
    try:
        store = open_store(patient.settings)
        store.write(key, body, "application/json")
        is_same = store.read(key) == body
        store.delete(key)
    except Refusal as refusal:
        raise Bad(
            f"The storage {patient.settings.storage_url} can't be used: {refusal.detail} "
            "Check the folder or bucket, and who may write to it."
        ) from None
    if not is_same:
        raise Bad("The storage gives back other bytes than were written.")
    return f"the storage {patient.settings.storage_url} can be written and read"


def port(patient: Patient) -> str:
    address = urlsplit(patient.settings.public_url)
    host, number = address.hostname or "127.0.0.1", address.port or 80
    try:
        with socket.create_connection((host, number), ANSWER_SECONDS):
            pass
    except OSError:
        return f"port {number} is free: the API does not run"
    try:
        url = f"{patient.settings.public_url.rstrip('/')}/healthz"
        is_ours = requests.get(url, timeout=ANSWER_SECONDS).json() == {"status": "ok"}
    except requests.RequestException:
        is_ours = False
    if not is_ours:
        raise Bad(f"Port {number} is taken by another program. Stop it, or choose another port.")
    return f"the API answers at {patient.settings.public_url}"


def comfyui(patient: Patient) -> str:
    if patient.comfyui_url is None:
        return "no ComfyUI to ask: name one with --comfyui, or start a stack"
    return f"ComfyUI {comfyui_version(patient.comfyui_url)} answers at {patient.comfyui_url}"


def workers(patient: Patient) -> str:
    since = utcnow() - timedelta(seconds=SEEN_SECONDS)
    seen = select(func.count()).select_from(Worker).where(Worker.last_seen_at >= since)
    try:
        with patient.databases.central(read_only=True) as session:
            count = session.scalar(seen)
    except DBAPIError:
        raise Bad("No GPU worker can be looked up: see the database above.") from None
    if not count:
        raise Bad(
            "No GPU worker was heard of in the last two minutes. Start one; `comfyfleet up` does."
        )
    return f"{count} GPU worker{'s' if count > 1 else ''} heard of in the last two minutes"


def control(patient: Patient) -> str:
    """A beat that died is seen by what is not done any more."""
    try:
        seen = control_runs.status(patient.databases, patient.settings)
    except DBAPIError:
        raise Bad("The control worker can't be looked up: see the database above.") from None
    if late := [one["task"] for one in seen if one["is_late"]]:
        raise Bad(
            f"Not done in time: {', '.join(late)}. Does a control worker run, with beat (-B)? "
            "`comfyfleet control status` tells since when."
        )
    return "the control worker does its tasks in time"


def clock(patient: Patient) -> str:
    """Leases and signed URLs compare times of several machines."""
    try:
        with redis_client(patient.settings.redis_url) as client:
            seconds, micros = client.time()
    except redis_errors.RedisError:
        raise Bad("The clock can't be compared: see Redis above.") from None
    apart = abs(time.time() - (int(seconds) + int(micros) / 1_000_000))
    if apart > CLOCK_SECONDS:
        raise Bad(f"This clock and that of Redis are {apart:.0f} s apart. Set them by NTP.")
    return "the clocks agree"


def _fleets(patient: Patient) -> list[str]:
    mine = select(Fleet.slug).where(Fleet.stage == patient.settings.stage).order_by(Fleet.slug)
    try:
        with patient.databases.central(read_only=True) as session:
            return list(session.scalars(mine))
    except DBAPIError:
        return []


CHECKS: dict[str, Callable[[Patient], str]] = {
    "python": python,
    "packages": packages,
    "secret key": secret_key,
    "database": database,
    "redis": redis,
    "broker": broker,
    "storage": storage,
    "port": port,
    "comfyui": comfyui,
    "workers": workers,
    "control": control,
    "clock": clock,
}
