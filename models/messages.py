"""What endpoints are told, and under which name.

A message is thin: ids and states. Whoever gets one asks the API for the rest, as the user it is
about, so nothing is told that would be worth stealing.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from models.base import row_id


class Event(StrEnum):
    """What an endpoint may listen to."""

    JOB_COMPLETED = "job.completed"
    JOB_FAILED = "job.failed"
    JOB_CANCELLED = "job.cancelled"
    WALLET_LOW = "wallet.low"


TEST = "endpoint.test"  # sent when an owner asks, whatever the endpoint listens to


@dataclass(frozen=True)
class Message:
    event: str
    key: str  # names what happened: under one key an endpoint is told once
    at: datetime
    data: dict[str, Any]

    @property
    def id(self) -> str:
        """The same for every endpoint, every try and every replay."""
        return f"msg_{hashlib.sha256(self.key.encode()).hexdigest()[:32]}"

    @property
    def payload(self) -> dict[str, Any]:
        at = self.at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return {"type": self.event, "timestamp": at, "data": self.data}


def job_ended(
    *, job_id: UUID, user_id: UUID, status: str, error_code: str | None, at: datetime
) -> Message:
    """A job ends once, so its id is all the key it needs."""
    told = {"job_id": str(job_id), "user_id": str(user_id), "status": str(status)}
    return Message(f"job.{status}", f"job:{job_id}", at, told | {"error_code": error_code})


def wallet_low(
    *, wallet_id: UUID, user_id: UUID, balance: int, below: int, at: datetime
) -> Message:
    """A wallet falls below its limit at one moment; after it rose, at another."""
    told = {"wallet_id": str(wallet_id), "user_id": str(user_id)}
    numbers = {"balance": balance, "below": below}
    return Message(Event.WALLET_LOW, f"wallet:{wallet_id}:{at.isoformat()}", at, told | numbers)


def test(*, endpoint_id: UUID, at: datetime) -> Message:
    return Message(TEST, f"test:{row_id()}", at, {"endpoint_id": str(endpoint_id)})
