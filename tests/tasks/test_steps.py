"""Something bad, slow or away costs a control task its time, and nobody else's."""

import pytest
from sqlalchemy.exc import OperationalError

from models.errors import DependencyUnavailable
from tasks import steps
from tasks.backend import Backend


class Locked(Exception):
    pgcode = "55P03"


AWAY = OperationalError("SELECT 1", {}, Exception("server closed the connection"))
STORAGE_AWAY = DependencyUnavailable("The storage does not answer.")
SLOW_ROW = OperationalError("SELECT 1", {}, Locked("canceling statement due to lock timeout"))


@pytest.mark.parametrize(
    ("error", "done"), [(AWAY, 1), (STORAGE_AWAY, 1), (SLOW_ROW, 2), (ValueError("bad"), 2)]
)
def test_what_is_away_for_one_is_away_for_all_that_follow(error: Exception, done: int) -> None:
    def step(number: int) -> bool:
        if number == 1:
            raise error
        return True

    with steps.under_way(60) as run:
        assert steps.each([0, 1, 2], step) == done
    assert run.trouble == ["1"]


def test_each_step_of_a_run_has_its_time(backend: Backend) -> None:
    def take(_: int) -> bool:
        return True

    with steps.under_way(0) as run:
        assert steps.guarded("a long list", lambda: steps.each(range(3), take)) == 0
        run.step_seconds = 60
        assert steps.in_every_pool(backend, lambda _: steps.each(range(3), take)) == 6
    assert run.trouble == ["some of it: the time was up"]
    assert steps.each(range(3), take) == 3  # nobody is in a hurry outside of a run


def test_a_pool_that_did_not_answer_is_left_alone_for_a_while(backend: Backend) -> None:
    asked = []

    def ask(pool: str) -> int:
        asked.append(pool)
        if pool == "main":
            raise AWAY
        return 1

    with steps.under_way(60) as run:
        assert [steps.in_every_pool(backend, ask) for _ in range(2)] == [1, 1]
    assert asked == ["main", "second", "second"]
    assert run.trouble == ["the pool main", "the pool main: it did not answer a moment ago"]
    backend.resting.forget("main")
    with steps.under_way(60):
        steps.in_every_pool(backend, ask)
    assert asked[3:] == ["main", "second"]


def test_a_pool_is_not_to_blame_for_a_storage_that_is_away(backend: Backend) -> None:
    def purge(_: str) -> int:
        return steps.each([1], lambda _: (_ for _ in ()).throw(STORAGE_AWAY))

    with steps.under_way(60) as run:
        steps.in_every_pool(backend, purge)
    assert run.trouble == ["1"]
    assert backend.resting.get("main") is None
