"""A Spot drill: one slow job, one notice to the worker that runs it, and what became of both.

Each step is read from where it is kept: the instance metadata, ComfyUI's history, the audit
log, the ledger. None is taken for granted because a later one was seen.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import requests

from models.audit import AuditLog
from models.session import Databases
from scripts import demo_media
from scripts.demo_customer import CallFailed, Customer, Json
from scripts.drill_facts import DrillFacts

EFFECT = "slow-invert"
WORK_SECONDS = 10.0
GONE_SECONDS = 10.0  # a worker has left so long after its notice
START_SECONDS = 60.0
STEP_SECONDS = 20.0  # since the notice
LOOK_SECONDS = 0.05
CALL_SECONDS = 5.0
TOP_UP_TOKENS = 1000

Seen = TypeVar("Seen")


class CannotDrill(RuntimeError):
    """There is nothing to drill with; the message says what is missing."""


class NotSeen(RuntimeError):
    """A step did not come; the message says what was expected."""


@dataclass(frozen=True, kw_only=True)
class Step:
    name: str
    ok: bool
    sentence: str
    seconds: float | None = None  # since the notice


class Drill:
    def __init__(self, customer: Customer, databases: Databases, machines: Json) -> None:
        self.customer, self.machines = customer, machines
        self.facts = DrillFacts(databases)
        self.job_id = self.worker = self.replacement = ""
        self.prompt_id = ""
        self.sent_at, self.began = datetime.now(UTC), time.monotonic()
        self.requeued_at: datetime | None = None

    def order(self, folder: Path, *, seconds: float = WORK_SECONDS) -> None:
        """Have a worker run a slow job. Raises CannotDrill."""
        self._require_slow_node()
        picture = folder / "drill.png"
        demo_media.draw_picture(picture)
        video = self.customer.send(picture, "image/png")
        # Never the same twice, or ComfyUI would have the result in its cache.
        own = round(seconds + random.random(), 3)  # noqa: S311
        self.job_id = str(self.customer.order(EFFECT, video["id"], seconds=own)["id"])
        try:
            self.worker = _until("a worker runs the job", self._at_work, seconds=START_SECONDS)
        except NotSeen as missing:
            raise CannotDrill(f"{missing} Does a GPU worker run?") from missing

    def notify(self) -> None:
        """Send the worker a Spot notice: from here the clock runs."""
        url = f"{self.machines[self.worker]['notices_url']}/spot"
        self.sent_at, self.began = datetime.now(UTC), time.monotonic()
        requests.put(url, timeout=CALL_SECONDS).raise_for_status()

    def steps(self) -> Iterator[Step]:
        """Every step as it is seen, or is not."""
        checks: dict[str, Callable[[], tuple[str, datetime | None]]] = {
            "notice_seen": self._notice_seen,
            "comfyui_interrupted": self._interrupted,
            "job_requeued": self._requeued,
            "worker_gone": self._gone,
            "replacement_took_it": self._taken,
            "job_completed": self._completed,
            "one_charge": self._charged,
        }
        for name, check in checks.items():
            try:
                sentence, at = check()
            except NotSeen as missing:
                yield Step(name=name, ok=False, sentence=str(missing))
            except (CallFailed, requests.RequestException) as away:
                yield Step(name=name, ok=False, sentence=f"This can't be looked at: {away}")
            else:
                seconds = self._since(at) if at else None
                yield Step(name=name, ok=True, sentence=sentence, seconds=seconds)

    def _since(self, at: datetime) -> float:
        return round((at - self.sent_at).total_seconds(), 2)

    def _require_slow_node(self) -> None:
        for name, machine in self.machines.items():
            url = f"{machine['comfyui_url']}/object_info/SlowImage"
            if not requests.get(url, timeout=CALL_SECONDS).json():
                raise CannotDrill(
                    f"The ComfyUI of {name} has no node SlowImage: the drill needs the stand-in."
                )

    def _at_work(self) -> str | None:
        holder = self.facts.holder(UUID(self.job_id))
        if holder not in self.machines:
            return None
        queue = self._ask(holder, "/queue")
        for item in queue["queue_running"]:
            if f"job-{self.job_id}-" in str(item):
                self.prompt_id = str(item[1])
                return holder
        return None

    def _ask(self, worker: str, path: str) -> Any:
        return requests.get(
            self.machines[worker]["comfyui_url"] + path, timeout=CALL_SECONDS
        ).json()

    def _notice_seen(self) -> tuple[str, datetime]:
        url = self.machines[self.worker]["notices_url"]

        def look() -> datetime | None:
            # Withdrawn when the stack starts the worker anew, so it is looked for often.
            notice = requests.get(url, timeout=CALL_SECONDS).json().get("spot") or {}
            return datetime.fromisoformat(notice["seen_at"]) if notice.get("seen_at") else None

        return f"{self.worker} saw the notice", self._soon("the worker sees its notice", look)

    def _interrupted(self) -> tuple[str, datetime]:
        def look() -> datetime | None:
            entry = self._ask(self.worker, f"/history/{self.prompt_id}").get(self.prompt_id) or {}
            for kind, told in entry.get("status", {}).get("messages", []):
                if kind == "execution_interrupted":
                    return datetime.fromtimestamp(told["timestamp"] / 1000, UTC)
            return None

        return "ComfyUI was interrupted", self._soon("ComfyUI interrupts the prompt", look)

    def _requeued(self) -> tuple[str, datetime]:
        row = self._soon("the job is handed back", lambda: self._audited("job.requeue"))
        attempt, reason = row.details["attempt"], str(row.details["reason"])
        if attempt != 0:
            raise NotSeen(f"The job was handed back, but {attempt} attempt was counted.")
        if not reason.startswith("spot interruption"):
            raise NotSeen(f"The job was handed back for another reason: {reason}.")
        self.requeued_at = row.at
        return "the job was handed back, no attempt counted", row.at

    def _gone(self) -> tuple[str, datetime]:
        row = self._soon(
            f"{self.worker} leaves the fleet",
            lambda: self.facts.told_of(self.worker, "worker.deregister", since=self.sent_at),
        )
        if self._since(row.at) > GONE_SECONDS:
            raise NotSeen(f"{self.worker} left only after {self._since(row.at):.1f} s.")
        return f"{self.worker} has left the fleet: it said goodbye to the backend", row.at

    def _taken(self) -> tuple[str, datetime]:
        if self.requeued_at is None:
            raise NotSeen("The job was not handed back, so nobody could take it.")
        row = self._later("somebody takes the job", lambda: self._audited("job.lease"))
        self.replacement = str(row.worker_id)
        again = ", registered anew," if self.replacement == self.worker else ""
        if again and not self.facts.told_of(self.worker, "worker.register", since=self.sent_at):
            raise NotSeen(f"{self.worker} took the job again without having registered anew.")
        return f"{self.replacement}{again} took the job", row.at

    def _completed(self) -> tuple[str, datetime]:
        row = self._later("the job completes", lambda: self._audited("job.complete"))
        job = self.customer.job(self.job_id)
        if (job["status"], len(job["outputs"])) != ("completed", 1):
            raise NotSeen(f"The job is {job['status']} with {len(job['outputs'])} results.")
        if row.details["attempt"] != 1:
            raise NotSeen(f"The job completed, but in attempt {row.details['attempt']}.")
        return "the job completed in its first counted attempt, with one result", row.at

    def _charged(self) -> tuple[str, None]:
        entries = [one for one in self.customer.transactions() if one["job_id"] == self.job_id]
        types = sorted(one["type"] for one in entries)
        if types != ["JOB_CONSUME", "JOB_RESERVE"]:
            raise NotSeen(f"The ledger has this for the job: {', '.join(types) or 'nothing'}.")
        price = -sum(one["amount"] for one in entries)
        return f"one charge: {price} tokens, reserved once and consumed once", None

    def _audited(self, event: str) -> AuditLog | None:
        return self.facts.audited(UUID(self.job_id), event, self.requeued_at or self.sent_at)

    def _soon(self, what: str, look: Callable[[], Seen | None]) -> Seen:
        """What has to come at once when a worker is to go."""
        return _until(what, look, seconds=STEP_SECONDS, since=self.began)

    def _later(self, what: str, look: Callable[[], Seen | None]) -> Seen:
        return _until(what, look, seconds=START_SECONDS)


def _until(
    what: str, look: Callable[[], Seen | None], *, seconds: float, since: float | None = None
) -> Seen:
    """`since` is when the time began to run, if that is not now."""
    deadline = (since or time.monotonic()) + seconds
    while (seen := look()) is None:
        if time.monotonic() > deadline:
            raise NotSeen(f"Expected within {seconds:g} s, and not seen: {what}.")
        time.sleep(LOOK_SECONDS)
    return seen


def top_up(customer: Customer, user_id: str, ready: Json) -> None:
    """After many drills the wallet is empty; an administrator books a payment."""
    if customer.balance() >= customer.price(EFFECT):
        return
    with Customer(ready["api_url"]) as admin:
        admin.token = ready["admin_token"]
        payment = {"amount": TOP_UP_TOKENS, "provider_transaction_id": f"drill:{time.time_ns()}"}
        admin.call("POST", f"/api/admin/wallets/{user_id}/credit", json=payment)
