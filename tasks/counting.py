"""Figures that only ever grow: what happened since counting began, each thing once.

They are counted from rows, by the times in them. A row may come a little later than its time
says, so only what is `SETTLED` is added to the total that is kept, together with the moment
up to which it was counted; what is newer is counted anew every time. Total and moment belong
together, so whoever counts again, at the same time or after a crash, comes to the same.

Each database is counted for itself. While one is away its totals stay as they are, and catch
up later. The clocks of all machines must agree to about a minute, as those of NTP do.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from models import pool_tallies, tallies
from models.pool_tallies import Tokens
from models.tallies import Submission
from tasks import steps
from tasks.backend import Backend

logger = logging.getLogger(__name__)

SETTLED = timedelta(seconds=60)
FARTHEST = timedelta(minutes=10)  # submissions are many: after a longer silence the rest is left

CENTRAL = "central database"  # a name that no pool can have
LEASES = "leases:"  # and the slug of a fleet
RUNPOD_FAILED = "runpod.submit_failed"  # no such provider yet, so nobody notes it

Numbers = dict[str, float]
Count = Callable[[datetime | None, datetime | None], Numbers]


@dataclass(frozen=True)
class Source:
    """What was counted in one database."""

    until: datetime  # of `settled`
    settled: Numbers
    live: Numbers  # and what is newer
    difference: int = 0  # of a pool: what its wallets hold more than its ledger says

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"until": self.until.isoformat()}

    @classmethod
    def from_json(cls, kept: dict[str, Any] | None) -> "Source | None":
        """None where nothing was kept, or nothing that can be used: then counting begins anew."""
        try:
            return cls(**kept | {"until": datetime.fromisoformat(kept["until"])}) if kept else None
        except (KeyError, TypeError, ValueError):
            logger.warning("What was counted before can't be read: %.200r", kept)
            return None


@dataclass(frozen=True)
class Counted:
    sources: dict[str, Source]
    submissions: list[Submission] = field(default_factory=list)  # of the last minute or two

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> "Counted":
        sources = {name: Source.from_json(one) for name, one in kept.items()}
        return cls({name: one for name, one in sources.items() if one is not None})

    @property
    def differences(self) -> dict[str, int]:
        """By pool."""
        return {name: one.difference for name, one in self.sources.items() if name != CENTRAL}

    @property
    def totals(self) -> Numbers:
        return _sum(source.live for source in self.sources.values())

    @property
    def settled(self) -> Numbers:
        return _sum(source.settled for source in self.sources.values())


def count(backend: Backend, before: dict[str, Any], *, now: datetime) -> Counted:
    """Go on from what was kept before, by database."""
    names = (CENTRAL, *backend.databases.pools)
    known = Counted.from_json({name: before.get(name) for name in names}).sources
    sources = dict(known)
    submissions: list[Submission] = []

    def count_central() -> int:
        sources[CENTRAL] = _central(backend, known.get(CENTRAL), now, submissions)
        return 1

    def count_pool(pool: str) -> int:
        sources[pool] = _pool(backend, pool, known.get(pool), now)
        return 1

    steps.guarded("counting in central", count_central)
    steps.in_every_pool(backend, count_pool)
    return Counted(sources, submissions)


def _go_on(known: Source | None, now: datetime, count: Count) -> Source:
    mark = (now - SETTLED).replace(microsecond=0)
    if known is None:
        settled = count(None, mark)
    elif known.until > now:
        logger.warning("Counted until %s, which is yet to come: a clock was wrong.", known.until)
        settled, mark = known.settled, now  # what came in between was counted, or is lost
    else:
        mark = max(mark, known.until)
        settled = _sum([known.settled, count(known.until, mark)])
    return Source(mark, settled, _sum([settled, count(mark, None)]))


def _central(
    backend: Backend, known: Source | None, now: datetime, submissions: list[Submission]
) -> Source:
    def count(start: datetime | None, end: datetime | None) -> Numbers:
        if start is None:  # what was before counting began is not told
            return {}
        expired = tallies.leases_expired(session, stage=stage, start=start, end=end)
        recent = max(start, now - FARTHEST)
        handed_over = tallies.submissions(session, start=recent, end=end)
        submissions.extend(handed_over)
        return {f"{LEASES}{slug}": number for slug, number in expired.items()} | {
            "submissions": len(handed_over),
            "submission_milliseconds": sum(one.milliseconds for one in handed_over),
            "webhooks_delivered": tallies.delivered(session, start=start, end=end),
            "runpod_failures": tallies.noted(session, RUNPOD_FAILED, start=start, end=end),
        }

    stage = backend.settings.stage
    with backend.databases.central(read_only=True) as session:
        return _go_on(known, now, count)


def _pool(backend: Backend, pool: str, known: Source | None, now: datetime) -> Source:
    """In one snapshot: then wallets and ledger must agree to the token."""

    def count(start: datetime | None, end: datetime | None) -> Numbers:
        orphans = pool_tallies.orphans(session, start=start, end=end) if start else 0
        tokens = pool_tallies.tokens(session, start=start, end=end)
        return {"orphans": orphans, **asdict(tokens)}

    with backend.databases.pool(pool, snapshot=True) as session:
        balance = pool_tallies.balance(session)
        counted = _go_on(known, now, count)
        difference = balance - _tokens(counted.live).balance
        if difference and difference != (known.difference if known else 0):
            counted = _recounted(session, counted)
            difference = balance - _tokens(counted.live).balance
            if difference:
                logger.error("The wallets of %s hold %+d tokens too many.", pool, difference)
    return replace(counted, difference=difference)


def _recounted(session: Session, counted: Source) -> Source:
    """All tokens from the first on: a row may have come later than we waited for it."""
    settled, newer = (
        asdict(pool_tallies.tokens(session, start=start, end=end))
        for start, end in ((None, counted.until), (counted.until, None))
    )
    live = _sum([settled, newer])
    return replace(counted, settled=counted.settled | settled, live=counted.live | live)


def _tokens(numbers: Numbers) -> Tokens:
    return Tokens(**{one.name: int(numbers.get(one.name, 0)) for one in fields(Tokens)})


def _sum(numbers: Iterable[Numbers]) -> Numbers:
    total: Counter[str] = Counter()
    for some in numbers:
        total.update(some)
    return dict(total)
