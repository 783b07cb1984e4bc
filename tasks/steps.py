"""How control tasks go on when something is bad, slow or away.

    each           items, one after the other: a bad one stops nobody, what is away stops the rest
    in_every_pool  pools, one after the other: one that is away holds up no other
    guarded        a step: what it could not do is left to the next run
    walk           everything there is, page by page, over as many runs as it takes

In a run of a control task (`under_way`) each step has its time: then the rest is left to the
next run, so that a long list, or something slow, does not keep the other steps waiting. A pool
that did not answer is left alone for a while, or every step would wait for it anew.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

from models import traces
from models.errors import DATABASE_AWAY, DependencyUnavailable
from tasks.backend import Backend

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


class HasTenant(Protocol):
    @property
    def tenant_id(self) -> UUID: ...


class HasUser(Protocol):
    @property
    def user_id(self) -> UUID: ...


Owned = TypeVar("Owned", bound=HasTenant)
OfUser = TypeVar("OfUser", bound=HasUser)

MOST_WALKED = 50_000  # rows that a run looks at, a few seconds' worth
MOST_TROUBLE = 20  # that is kept of a run; the log has all of it


@dataclass
class Run:
    """A run of a control task: how long a step may take, and what could not be done."""

    step_seconds: float
    until: float = float("inf")
    met_nobody: bool = False
    trouble: list[str] = field(default_factory=list)


_current: ContextVar[Run | None] = ContextVar("run", default=None)


@contextmanager
def under_way(step_seconds: float) -> Iterator[Run]:
    run = Run(step_seconds)
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)


def each(items: Iterable[Item], step: Callable[[Item], int]) -> int:
    """Take one step per item; how much they did together, where True is one."""
    done = 0
    for item in items:
        if is_time_up():
            note("some of it: the time was up")
            break
        with traces.about(item):
            try:
                done += step(item)
            except Exception as error:
                note(f"{item!r:.200}", error)
                if is_away(error):
                    told = "Could not carry on with %r, nor with what follows: %s"
                    logger.warning(told, item, error)
                    break
                logger.exception("Could not carry on with %r; the next run tries again.", item)
    return done


def in_every_pool(backend: Backend, step: Callable[[str], int]) -> int:
    return sum(in_pool(backend, pool, step) for pool in backend.databases.pools)


def each_by_pool(backend: Backend, items: Iterable[Owned], step: Callable[[Owned], int]) -> int:
    """`each`, pool by pool."""
    by_pool: dict[str, list[Owned]] = {}
    for item in items:
        by_pool.setdefault(backend.databases.pool_of(item.tenant_id), []).append(item)
    return sum(in_pool(backend, pool, lambda pool: each(by_pool[pool], step)) for pool in by_pool)


def in_pool(backend: Backend, pool: str, step: Callable[[str], int]) -> int:
    if backend.resting.get(pool):
        note(f"the pool {pool}: it did not answer a moment ago")
        return 0
    run = _current.get() or Run(0)
    run.met_nobody = False
    done = guarded(f"the pool {pool}", partial(step, pool))
    if run.met_nobody:
        backend.resting.put(pool, True)
    return done


def guarded(what: str, step: Callable[[], int]) -> int:
    """How much a step did; nothing if something it needs is away. The others go on."""
    run = _current.get() or Run(0)
    outer, run.until = run.until, time.monotonic() + run.step_seconds
    try:
        return step()
    except Exception as error:
        note(what, error)
        if is_away(error):
            logger.warning("Could not carry on with %s: %s", what, error)
        else:
            logger.exception("Could not carry on with %s; the next run tries again.", what)
        return 0
    finally:
        run.until = outer


def walk(
    backend: Backend,
    name: str,
    read: Callable[[UUID | None], Sequence[OfUser]],
    look: Callable[[Sequence[OfUser]], int],
) -> int:
    """Look at page after page, at `MOST_WALKED` rows at most: the next run begins behind them."""
    done, walked = 0, 0
    while page := read(backend.walks.get(name)):
        if is_time_up() or walked >= MOST_WALKED:
            return done
        done += look(page)
        walked += len(page)
        backend.walks.put(name, page[-1].user_id)
    backend.walks.forget(name)
    return done


def is_time_up() -> bool:
    run = _current.get()
    return run is not None and time.monotonic() >= run.until


def is_away(error: Exception) -> bool:
    return is_database_away(error) or isinstance(error, DependencyUnavailable)


def is_database_away(error: Exception) -> bool:
    """Nobody answered. What a database says itself, of a lock say, is about one item only."""
    told = getattr(error, "orig", error)
    return isinstance(error, DATABASE_AWAY) and getattr(told, "pgcode", None) is None


def note(what: str, error: Exception | None = None) -> None:
    """This could not be done in the run that is under way."""
    run = _current.get()
    if run is None:
        return
    run.met_nobody |= error is not None and is_database_away(error)
    if what not in run.trouble and len(run.trouble) < MOST_TROUBLE:
        run.trouble.append(what)
