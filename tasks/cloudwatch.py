"""Sending figures to CloudWatch: all of a fleet in one call, as many fleets as fit into it.

A call that fails is logged; what it held is not sent again, but for the sums, which are still
owed the next time (metrics.py).
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models.settings import Settings
from tasks import steps

logger = logging.getLogger(__name__)

MOST_DATUMS = 1000  # in a call, as AWS has it
MOST_BYTES = 1_000_000
DATUM_BYTES = 700  # of a call, for one with short names; generous
CONNECT_SECONDS, ANSWER_SECONDS, TRIES = 3, 5, 2


@dataclass(frozen=True, kw_only=True)
class Datum:
    name: str
    unit: str
    dimensions: dict[str, str]
    value: float | None = None
    statistics: dict[str, float] | None = None  # instead of a value: of many at once
    owed: tuple[str, ...] = ()  # the totals that are paid off when this is sent

    @property
    def size_bytes(self) -> int:
        return DATUM_BYTES + sum(3 * len(value) for value in self.dimensions.values())

    def to_aws(self, at: datetime) -> dict[str, Any]:
        told: dict[str, Any] = {
            "MetricName": self.name,
            "Timestamp": at,
            "Unit": self.unit,
            "Dimensions": [{"Name": name, "Value": one} for name, one in self.dimensions.items()],
        }
        if self.statistics is not None:
            return told | {"StatisticValues": self.statistics}
        return told | {"Value": self.value}


def calls(groups: Iterable[Sequence[Datum]]) -> Iterator[list[Datum]]:
    """What goes into each call. A group is not divided."""
    call: list[Datum] = []
    size = 0
    for group in groups:
        more = sum(datum.size_bytes for datum in group)
        if call and (len(call) + len(group) > MOST_DATUMS or size + more > MOST_BYTES):
            yield call
            call, size = [], 0
        call.extend(group)
        size += more
    if call:
        yield call


def send(settings: Settings, groups: Iterable[Sequence[Datum]], *, at: datetime) -> list[Datum]:
    """One after the other; returns what AWS took. Raises nothing that AWS may be to blame for."""
    from botocore.exceptions import BotoCoreError, ClientError

    sent: list[Datum] = []
    try:
        client = _client(settings)
        for call in calls(groups):
            try:
                client.put_metric_data(
                    Namespace=settings.cloudwatch_namespace,
                    MetricData=[datum.to_aws(at) for datum in call],
                )
            except ClientError as refused:
                logger.error("CloudWatch refused %d figures: %s", len(call), refused)
                steps.note("CloudWatch: it refused some figures")
            else:
                sent += call
    except BotoCoreError as away:
        logger.error("CloudWatch could not be told: %s", away)
        steps.note("CloudWatch: it could not be told")
    return sent


def _client(settings: Settings) -> Any:
    """Asks in the region that is set, or else in the one that the environment names."""
    import boto3  # takes a second, and only houses on AWS need it
    from botocore.config import Config

    region = settings.cloudwatch_region or os.environ.get("AWS_REGION")
    patience = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"total_max_attempts": TRIES},
    )
    session = boto3.Session()
    region = region or session.region_name or settings.s3_region
    return session.client("cloudwatch", region_name=region, config=patience)
