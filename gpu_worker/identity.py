"""Who this worker is: settings completed by what the instance knows of itself.

What the environment says always wins. Metadata is asked only for what is missing, and SSM only
for the fleet secret. Off EC2 a name is drawn once and kept, so that a worker that starts again
is the one it was: it finds its folder, and the webapp knows it.
"""

import fcntl
import itertools
import os
import secrets
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_worker.imds import Imds
from gpu_worker.settings import BadSetting, Settings, variable

_CONNECT_SECONDS = 3
_READ_SECONDS = 5


def complete(settings: Settings) -> Settings:
    """Settings with which a worker can start. Raises BadSetting, or MetadataUnavailable."""
    settings.require("backend_url", "redis_url")
    settings = _from_instance(settings) if settings.on_ec2 else settings
    if not settings.stage:
        settings = replace(settings, stage="dev")
    settings.require("fleet_slug")
    if settings.on_ec2 and not settings.asg_name:
        settings = replace(settings, asg_name=f"asg-{settings.stage}-{settings.fleet_slug}")
    if not settings.worker_id:
        settings = replace(settings, worker_id=_kept_name(Path(settings.state_dir)))
    if not settings.fleet_secret:
        settings = replace(settings, fleet_secret=_secret_parameter(settings))
    return settings


def _kept_name(folder: Path) -> str:
    """The first in this folder that no other process goes by."""
    names = itertools.chain(["worker-id"], (f"worker-id-{n}" for n in itertools.count(2)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = next(file for name in names if (file := _locked(folder / name)) is not None)
        if kept := os.pread(file, 200, 0).decode().strip():
            return kept
        drawn = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        os.pwrite(file, drawn.encode(), 0)
    except OSError as error:
        raise BadSetting(
            f"{variable('state_dir')}: {folder} can't be used: {error.strerror}."
        ) from error
    return drawn


def _locked(path: Path) -> int | None:
    """Open until this process ends, and the lock with it. None: another process has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _from_instance(settings: Settings) -> Settings:
    known_as = {
        "worker_id": "instance-id",
        "fleet_slug": "tags/instance/FleetSlug",
        "stage": "tags/instance/Stage",
        "region": "placement/region",
    }
    imds = Imds(settings.metadata_url)
    missing = {name: path for name, path in known_as.items() if not getattr(settings, name)}
    found: dict[str, Any] = {name: (imds.get(path) or "").strip() for name, path in missing.items()}
    return replace(settings, **found)


def _secret_parameter(settings: Settings) -> str:
    name = settings.fleet_secret_parameter
    if not name:
        raise BadSetting(
            f"Neither {variable('fleet_secret')} nor {variable('fleet_secret_parameter')} is set, "
            "and the worker can't register without."
        )
    # Costs memory that a worker with its secret in the environment need not pay.
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        found = _ssm(settings).get_parameter(Name=name, WithDecryption=True)
    except ClientError as error:
        reason = error.response.get("Error", {}).get("Code", "refused")
    except BotoCoreError as error:
        reason = type(error).__name__
    else:
        if secret := found["Parameter"]["Value"].strip():
            return str(secret)
        reason = "it is empty"
    raise BadSetting(
        f"{variable('fleet_secret_parameter')}: the SSM parameter {name!r} can't be used "
        f"({reason})."
    )


def _ssm(settings: Settings) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS)
    return boto3.Session().client("ssm", region_name=settings.region or None, config=config)
