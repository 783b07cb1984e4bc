"""Where waiting dispatches stand, answered for many askers by few reads.

A place is the key that leases are ordered by. The head of a lane is read as it is: the first
thousand keys, one step along the index that leases walk. Behind it stands a ladder, every
thousandth key of the whole lane: reading it takes a walk along all that waits (0.4 s for a
million), so it is read seldom, and a place found on it is exact to about one rung.
"""

from bisect import bisect_left
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.dispatches import READY, Dispatch, DispatchStatus

HEAD = 1000
RUNG = 1000

Key = tuple[int, int, int]  # priority turned round, turn, seq: smaller is served first


def key_of(dispatch: Dispatch) -> Key:
    return (-dispatch.priority, dispatch.turn, dispatch.seq)


def head(session: Session, *, fleet_id: UUID, provider: str) -> list[Key]:
    """Who is served first, in order. Fewer than HEAD of them are all that wait."""
    rows = session.execute(
        select(Dispatch.priority, Dispatch.turn, Dispatch.seq)
        .where(Dispatch.fleet_id == fleet_id, Dispatch.provider == provider, READY)
        .order_by(Dispatch.priority.desc(), Dispatch.turn, Dispatch.seq)
        .limit(HEAD)
    )
    return [(-priority, turn, seq) for priority, turn, seq in rows]


def ladder(session: Session, *, fleet_id: UUID, provider: str) -> list[Key]:
    """Every thousandth key, from the first on."""
    order = (Dispatch.priority.desc(), Dispatch.turn, Dispatch.seq)
    numbered = (
        select(
            Dispatch.priority,
            Dispatch.turn,
            Dispatch.seq,
            (func.row_number().over(order_by=order) - 1).label("place"),
        )
        .where(Dispatch.fleet_id == fleet_id, Dispatch.provider == provider, READY)
        .subquery()
    )
    rows = session.execute(
        select(numbered.c.priority, numbered.c.turn, numbered.c.seq)
        .where(numbered.c.place % RUNG == 0)
        .order_by(numbered.c.place)
    )
    return [(-priority, turn, seq) for priority, turn, seq in rows]


def place_in_head(dispatch: Dispatch, keys: Sequence[Key]) -> int | None:
    """How many are ahead of it; None if it waits behind all of a full head."""
    if dispatch.status != DispatchStatus.QUEUED:
        return None
    place = bisect_left(keys, key_of(dispatch))
    return place if place < HEAD else None


def place_on_ladder(dispatch: Dispatch, rungs: Sequence[Key]) -> int:
    """About how many are ahead of it: the middle between two rungs."""
    above = bisect_left(rungs, key_of(dispatch))
    return max(above * RUNG - RUNG // 2, HEAD)
