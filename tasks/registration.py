"""How workers come and go: the fleet's secret lets them in, a token of their own keeps them in.

Whatever a worker held when it left, or when it began anew under the same name, may be leased
by others at once. An instance may be checked against its Auto Scaling Group; when AWS does
not answer it is let in, because a fleet that can't start is worse, and that is said.
"""

import hmac
import logging
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from models import audit, dispatches, fleets, workers
from models.base import utcnow
from models.errors import Forbidden, NotFound, Unauthorized
from models.fleets import Fleet
from models.workers import Identity
from tasks.backend import Backend

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Request:
    worker_id: str
    fleet_slug: str
    stage: str
    providers: list[str]
    capabilities: dict[str, Any]
    max_concurrency: int = 1


@dataclass(frozen=True)
class Registered:
    token: str
    workflows: list[str]


def register(
    backend: Backend, request: Request, *, secret: str, old_token: str | None = None
) -> Registered:
    fleet = _open_fleet(backend, request, secret)
    checked = _check_instance(backend, request)
    token = workers.new_token()
    gone_before = utcnow() - timedelta(seconds=backend.settings.worker_gone_seconds)
    with backend.databases.central() as session:
        assigned = workers.register(
            session,
            fleet=fleet,
            worker_id=request.worker_id,
            token=token,
            providers=request.providers,
            capabilities=request.capabilities,
            max_concurrency=request.max_concurrency,
            gone_before=gone_before,
            old_token=old_token,
        )
        abandoned = dispatches.abandon(session, fleet_id=fleet.id, worker_id=request.worker_id)
        audit.record(
            session,
            "worker.register",
            actor=f"worker:{request.worker_id}",
            worker_id=request.worker_id,
            fleet=fleet.slug,
            providers=request.providers,
            instance=checked,
            abandoned=len(abandoned),
        )
    for dispatch_id in abandoned:
        backend.bell.ring(fleet.slug, dispatch_id)
    return Registered(token, [workflow.slug for workflow in assigned])


def deregister(backend: Backend, worker: Identity) -> None:
    with backend.databases.central() as session:
        workers.remove(session, worker.id)  # first, like a heartbeat: no two wait for each other
        abandoned = dispatches.abandon(
            session, fleet_id=worker.fleet_id, worker_id=worker.worker_id
        )
        audit.record(
            session,
            "worker.deregister",
            actor=worker.actor,
            worker_id=worker.worker_id,
            fleet=worker.fleet_slug,
            abandoned=len(abandoned),
        )
    for dispatch_id in abandoned:
        backend.bell.ring(worker.fleet_slug, dispatch_id)


def _open_fleet(backend: Backend, request: Request, secret: str) -> Fleet:
    """The fleet, if the secret opens it. The secret first: strangers learn no names of fleets."""
    valid = backend.settings.fleet_secrets_for(request.fleet_slug)
    # All of them are compared, in constant time each: how long it takes tells nothing.
    matches = [hmac.compare_digest(secret.encode(), one.encode()) for one in valid]
    if not any(matches):
        raise Unauthorized("The header X-Fleet-Secret does not open this fleet.")
    fleets.check_slug(request.fleet_slug)
    with backend.databases.central(read_only=True) as session:
        fleet = fleets.get(session, stage=request.stage, slug=request.fleet_slug)
    if not fleet.is_active:
        raise NotFound(f"The fleet {fleet.slug!r} is switched off.")
    return fleet


def _check_instance(backend: Backend, request: Request) -> str:
    """How the worker's word on being an instance was checked; Forbidden if it is not true."""
    if backend.settings.check_instances != "on" or not request.worker_id.startswith("i-"):
        return "not checked"
    group = f"asg-{request.stage}-{request.fleet_slug}"
    try:
        found = _auto_scaling_group_of(request.worker_id, else_region=backend.settings.s3_region)
    except Exception as error:  # whatever boto3 has to say, the door stays open
        logger.warning(
            "%s was let in unchecked: AWS does not answer (%s).", request.worker_id, error
        )
        return "AWS did not answer"
    if found != group:
        logger.warning("%s says it is of %s; AWS says %s.", request.worker_id, group, found)
        raise Forbidden(f"The instance {request.worker_id} is not in the group {group}.")
    return "in its group"


def _auto_scaling_group_of(instance_id: str, *, else_region: str) -> str | None:
    """Asks in the region that the environment names, in `else_region` if it names none."""
    import boto3  # takes a second, and only fleets on AWS need it
    from botocore.config import Config

    # Containers on AWS say AWS_REGION; boto3 itself reads AWS_DEFAULT_REGION and its files.
    region = os.environ.get("AWS_REGION") or boto3.Session().region_name or else_region
    patience = Config(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 2})
    client = boto3.Session().client("autoscaling", region_name=region, config=patience)
    answer = client.describe_auto_scaling_instances(InstanceIds=[instance_id])
    instances = answer["AutoScalingInstances"]
    return str(instances[0]["AutoScalingGroupName"]) if instances else None
