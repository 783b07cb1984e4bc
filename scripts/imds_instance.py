"""What one instance of the IMDS stand-in knows: its facts, its notices, its tokens."""

import json
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

#: Where each kind of notice shows in the metadata.
NOTICES = {
    "spot": "spot/instance-action",
    "rebalance": "events/recommendations/rebalance",
    "scale-in": "autoscaling/target-lifecycle-state",
}


@dataclass
class Notice:
    sent_at: str
    seen_at: str | None = None  # when the instance was first told


@dataclass
class Instance:
    facts: dict[str, str]
    notices: dict[str, Notice] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=dict)  # and when each expires

    @classmethod
    def named(cls, name: str) -> "Instance":
        facts = {
            "instance-id": name,
            "placement/region": "us-east-1",
            "placement/availability-zone": "us-east-1a",
            NOTICES["scale-in"]: "InService",
        }
        return cls(facts)

    def token(self, ttl_seconds: int) -> str:
        token = secrets.token_urlsafe(40)
        self.tokens[token] = time.monotonic() + ttl_seconds
        return token

    def accepts(self, token: str) -> bool:
        return self.tokens.get(token, 0.0) > time.monotonic()

    def notify(self, kind: str) -> None:
        due = _timestamp(datetime.now(UTC) + timedelta(minutes=2))
        now = _timestamp(datetime.now(UTC))
        texts = {
            "spot": json.dumps({"action": "terminate", "time": due}),
            "rebalance": json.dumps({"noticeTime": now}),
            "scale-in": "Terminated",
        }
        self.facts[NOTICES[kind]] = texts[kind]
        self.notices[kind] = Notice(sent_at=datetime.now(UTC).isoformat())

    def clear(self) -> None:
        for path in NOTICES.values():
            self.facts.pop(path, None)
        self.facts[NOTICES["scale-in"]] = "InService"
        self.notices.clear()

    def read(self, path: str) -> str | None:
        if path in self.facts:
            for kind, notice in self.notices.items():
                if NOTICES[kind] == path and notice.seen_at is None:
                    notice.seen_at = datetime.now(UTC).isoformat()
            return self.facts[path]
        return self._folder(path)

    def _folder(self, path: str) -> str | None:
        """The names below, one per line; those that have names below them end in a slash."""
        folder = path and path.rstrip("/") + "/"
        below = [one.removeprefix(folder) for one in self.facts if one.startswith(folder)]
        names = {one.split("/")[0] + ("/" if "/" in one else "") for one in below}
        if not names:
            return None
        return "\n".join(sorted(names))


def _timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
