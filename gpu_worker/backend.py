"""The worker's side of the worker protocol: HTTP to the webapp, with a token of its own.

Three things can go wrong, and each asks for something else: the webapp is away (Unreachable:
try again), the lease belongs to somebody else (LeaseLost: drop the job), or the call is
refused (Refused: say so). A token that is not known any more is replaced: by the one that an
operator has put in its place meanwhile, else by registering anew.

What is told comes in part from ComfyUI and its nodes. It is made fit to be told here, so that
no odd character keeps a failure from being reported.
"""

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_worker import spans
from gpu_worker.lease import Lease, readable_trace
from gpu_worker.wire import Answer, HTTPException, Wire

logger = logging.getLogger(__name__)

_CONNECT_SECONDS, _READ_SECONDS = 3.0, 15.0
_MOST_CHARACTERS = 20_000  # of one text; the webapp keeps no more
_UNTELLABLE = re.compile("[\0\ud800-\udfff]")  # no database takes them as text


class Unreachable(Exception):
    """The webapp does not answer, or can't right now."""


class LeaseLost(Exception):
    """The job was given to somebody else, or has ended."""


class Refused(Exception):
    """The webapp understood, and said no."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.status, self.code, self.detail = status, code, detail


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What a worker says of itself when it registers."""

    worker_id: str
    fleet_slug: str
    stage: str
    fleet_secret: str
    providers: list[str]
    capabilities: dict[str, Any]


class Backend:
    """Safe to share between threads: each has connections of its own."""

    def __init__(
        self,
        url: str,
        membership: Membership,
        *,
        token: str = "",
        on_token: Callable[[str], None] = lambda _token: None,
        kept_token: Callable[[], str] = lambda: "",
        read_seconds: float = _READ_SECONDS,
    ) -> None:
        self._wire = Wire(url.rstrip("/") + "/api/worker", connect_seconds=_CONNECT_SECONDS)
        self._membership = membership
        self._registering = threading.Lock()
        self._has_left = False
        self._on_token, self._kept_token = on_token, kept_token
        self._read_seconds = read_seconds
        self.token = token

    def close(self) -> None:
        """The connection of the calling thread; those of others go with their threads."""
        self._wire.close()

    def register(self) -> dict[str, Any]:
        """Join the fleet. The old token, if there is one, shows that we are who we were."""
        member = self._membership
        headers = {"X-Fleet-Secret": member.fleet_secret}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        body = {
            "worker_id": member.worker_id,
            "fleet_slug": member.fleet_slug,
            "stage": member.stage,
            "max_concurrency": 1,
            "providers": member.providers,
            "capabilities": member.capabilities,
        }
        answer = self._answer(self._send("register", body, headers))
        self.token = _told("token", answer)
        self._on_token(self.token)
        return answer

    def poll(self, traceparent: str = "") -> Lease | None:
        asked = {
            "providers": self._membership.providers,
            "current_load": 0,
            "max_concurrency": 1,
            "holds_nothing": True,  # one whose answer got lost comes again
        }
        answer = self._post("poll", asked, traceparent)
        return Lease.from_json(answer) if answer else None

    def heartbeat(self, lease: Lease | None = None, **told: Any) -> dict[str, Any]:
        if lease is None:
            return self._post("heartbeat", told)
        return self._post("heartbeat", lease.proof | told, lease.trace)

    def complete(self, lease: Lease, **report: Any) -> str:
        return _told("status", self._post("complete", lease.proof | report, lease.trace))

    def fail(self, lease: Lease, **report: Any) -> str:
        return _told("status", self._post("fail", lease.proof | report, lease.trace))

    def requeue(self, lease: Lease, *, reason: str) -> str:
        body = lease.proof | {"reason": reason}
        return _told("status", self._post("requeue", body, lease.trace))

    def deregister(self) -> None:
        """Leave for good: a call that comes late must not bring the worker back."""
        with self._registering:
            self._has_left = True
        self._answer(self._send("deregister", {}, self._authorization()))

    def _post(self, name: str, body: dict[str, Any], traceparent: str = "") -> dict[str, Any]:
        with spans.span(f"POST /api/worker/{name}", within=traceparent, is_call=True):
            return self._post_within(name, body, spans.traceparent() or readable_trace(traceparent))

    def _post_within(self, name: str, body: dict[str, Any], traceparent: str) -> dict[str, Any]:
        shown, body = self.token, _tellable(body)
        trace = {"traceparent": traceparent} if traceparent else {}
        try:
            return self._answer(self._send(name, body, self._authorization() | trace))
        except Refused as refused:
            if refused.status != 401 or self._has_left:
                raise
        self._register_anew(shown)
        return self._answer(self._send(name, body, self._authorization() | trace))

    def _register_anew(self, refused_token: str) -> None:
        with self._registering:
            # Otherwise another thread has done it, or there is nothing to come back to.
            if self.token != refused_token or self._has_left:
                return
            kept = self._kept_token()
            if kept and kept != refused_token:
                logger.info("An operator has given this worker another token.")
                self.token = kept
                return
            logger.warning("The webapp does not know this worker any more: registering anew.")
            self.register()

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def _send(self, name: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        try:
            return self._wire.ask(
                "POST", f"/{name}", body=body, headers=headers, seconds=self._read_seconds
            )
        except (HTTPException, OSError) as error:
            raise Unreachable(f"{name}: {type(error).__name__}") from error

    def _answer(self, answer: Answer) -> dict[str, Any]:
        status = answer.status
        if status == 204:
            return {}
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict) or status >= 500 or 300 <= status < 400:
            raise Unreachable(f"The webapp answered with status {status}.")
        if answer.is_good:
            return found
        code, detail = str(found.get("code")), str(found.get("detail"))
        if status == 429:
            raise Unreachable(f"{code}: {detail}")
        if code == "lease_lost":
            raise LeaseLost(detail)
        raise Refused(status, code, detail)


def _tellable(told: Any) -> Any:
    if isinstance(told, str):
        return _UNTELLABLE.sub("\ufffd", told[:_MOST_CHARACTERS])
    if isinstance(told, dict):
        return {key: _tellable(value) for key, value in told.items()}
    if isinstance(told, list):
        return [_tellable(value) for value in told]
    return told


def _told(name: str, answer: Mapping[str, Any]) -> str:
    if name not in answer:  # something between us and the webapp has answered in its place
        raise Unreachable(f"The answer has no {name}.")
    return str(answer[name])
