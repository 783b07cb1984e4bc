"""A job as the webapp hands it out, with all that it takes to run it and to speak of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True)
class Lease:
    dispatch_id: str
    lease_token: str
    job_id: str
    provider: str
    attempt: int
    deadline_seconds: float
    output_url: str
    output_headers: dict[str, str]
    graph: dict[str, Any]
    output_node_id: str | None
    assets: list[dict[str, Any]]
    trace: str = ""  # of the order, as W3C writes it

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> "Lease":
        payload = answer["input_payload"]
        return cls(
            dispatch_id=answer["dispatch_id"],
            lease_token=answer["lease_token"],
            job_id=answer["job_id"],
            provider=answer["provider"],
            attempt=answer["attempt"],
            deadline_seconds=answer["deadline_seconds"],
            output_url=answer["output_url"],
            output_headers=answer["output_headers"],
            graph=payload["graph"],
            output_node_id=payload["output_node_id"],
            assets=payload["assets"],
            trace=readable_trace(answer.get("trace")),
        )

    @property
    def proof(self) -> dict[str, str]:
        return {"dispatch_id": self.dispatch_id, "lease_token": self.lease_token}

    @property
    def ids(self) -> dict[str, str | None]:
        """What log lines about it are found by."""
        trace_id = self.trace.split("-")[1] if self.trace else None
        return {"job_id": self.job_id, "dispatch_id": self.dispatch_id, "trace_id": trace_id}


def readable_trace(given: str | None) -> str:
    """A traceparent as it came with a ticket or a lease; nothing if it is none."""
    return given if given and _TRACEPARENT.fullmatch(given) else ""
