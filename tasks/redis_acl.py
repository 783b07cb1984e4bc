"""The Redis user of a fleet: what its workers need, and nothing of anybody else's.

A worker takes tickets from its fleet's queue, keeps those at work in the fleet's own keys,
hears control commands and answers them, and tells events. It can't order other workers about:
the rule that lets it hear the control channel does not let it speak there. That takes
selectors (the rules in parentheses), so Redis 7 or Valkey.

The keys are named in gpu_worker/app.py, and by Kombu; tests/tasks/test_redis_acl.py runs a
real worker with these rules, and reads in the server's log that it was refused nothing.
"""

import hashlib
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from models import fleets

#: Tickets: taken, kept while at work, put back, and those that a dead worker kept. (lpush is
#: for a ticket that Celery rejects, unwatch below for a transaction that an error cut short.)
_TICKETS = "brpop llen rpush lpush zadd zrem zrange hset hget hdel set get del sadd"
#: The pieces of Kombu's transactions and scripts, and its control channel. They have no keys.
_TALK = "ping multi exec watch unwatch evalsha script|load script|exists time psubscribe"
_HANG_UP = "punsubscribe"


@dataclass(frozen=True)
class FleetUser:
    """`database` is the number of the Redis database, as at the end of its address."""

    slug: str
    database: int = 0

    def __post_init__(self) -> None:
        # Then it holds nothing that means more than itself in a pattern or on a line.
        fleets.check_slug(self.slug)

    @property
    def name(self) -> str:
        return f"fleet-{self.slug}"

    def rules(self) -> list[str]:
        """All but the password."""
        return [
            *(f"~{key}" for key in self._own_keys()),
            f"&/{self.database}.celery.pidbox",
            *(f"+{command}" for command in f"{_TICKETS} {_TALK} {_HANG_UP}".split()),
            *([f"+select|{self.database}"] if self.database else []),
            *self._shared(),
        ]

    def set_user(self, password: str | None) -> str:
        """A line for redis-cli. Without a password, the user keeps the one it has."""
        anew = ["reset", "on", _hashed(password)] if password else ["on", *_ANEW]
        return " ".join(["ACL SETUSER", self.name, *anew, *self.rules()])

    def file_line(self, password: str | None) -> str:
        """A line of users.acl, the file that `aclfile` names."""
        own = [_hashed(password)] if password else []
        return " ".join(["user", self.name, "on", *own, "resetchannels", "-@all", *self.rules()])

    def _own_keys(self) -> list[str]:
        slug = self.slug
        unacked = [f"{slug}.unacked", f"{slug}.unacked_index", f"{slug}.unacked_mutex"]
        return [slug, *unacked, f"_kombu.binding.{slug}", f"_kombu.binding_permanent.{slug}"]

    def _shared(self) -> list[str]:
        """What all fleets have in common, each with just the commands it takes."""
        return [
            f"(+publish &/{self.database}.celeryev/*)",
            "(+smembers ~_kombu.binding.reply.celery.pidbox)",
            "(+lpush ~*.reply.celery.pidbox)",
            "(+evalsha +sadd +zadd ~_kombu.binding.celery.pidbox ~_kombu.binding_deadlines)",
            "(+srem ~_kombu.binding.celery.pidbox ~_kombu.binding_permanent.celery.pidbox)",
            # The dot ends the slug: none has one, and a fleet's name may begin as another's.
            f"(+llen +del ~gpu@{self.slug}.*.celery.pidbox)",
        ]


_ANEW = ["resetkeys", "resetchannels", "clearselectors", "-@all"]


def _hashed(password: str) -> str:
    """So that the line may lie about, and be typed where it is remembered."""
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"


def database_of(redis_url: str) -> int:
    return int(urlsplit(redis_url).path.strip("/") or 0)


def worker_url(redis_url: str, user: str, password: str) -> str:
    """The broker as a worker of the fleet reaches it."""
    parts = urlsplit(redis_url)
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}").geturl()
