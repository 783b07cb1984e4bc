"""A turn is taken once in its period, by whoever comes first."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from models import control_turns
from models.base import utcnow
from tasks.backend import Backend


def test_a_turn_is_free_again_after_its_period(backend: Backend) -> None:
    now = utcnow()
    with backend.databases.central() as session:
        assert control_turns.take(session, "metrics", seconds=55, now=now)
        assert not control_turns.take(
            session, "metrics", seconds=55, now=now + timedelta(seconds=54)
        )
        assert control_turns.take(session, "metrics", seconds=55, now=now + timedelta(seconds=55))


def test_of_many_who_ask_at_once_one_gets_it(backend: Backend) -> None:
    def ask(_: int) -> bool:
        with backend.databases.central() as session:
            return control_turns.take(session, "metrics", seconds=55)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(16))) == 1


def test_what_was_done_is_noted_with_or_without_a_turn(backend: Backend) -> None:
    now = utcnow()
    with backend.databases.central() as session:
        control_turns.finish(session, "sweep", done={"objects_deleted": 1}, now=now)
        control_turns.finish(session, "sweep", done={"objects_deleted": 3}, now=now)
        [turn] = control_turns.all_turns(session)
        assert (turn.name, turn.finished_at, turn.done) == ("sweep", now, {"objects_deleted": 3})


def test_a_turn_of_a_clock_that_was_far_ahead_does_not_stop_the_others(backend: Backend) -> None:
    now = utcnow()
    with backend.databases.central() as session:
        ahead = now + timedelta(hours=1)
        assert control_turns.take(session, "metrics", seconds=45, now=ahead)
        assert control_turns.take(session, "metrics", seconds=45, now=now)
        # A second ahead is no reason to do it twice.
        assert not control_turns.take(
            session, "metrics", seconds=45, now=now - timedelta(seconds=1)
        )


def test_the_clock_of_the_database_is_about_right(backend: Backend) -> None:
    with backend.databases.central(read_only=True) as session:
        clock = control_turns.clock(session)
    assert abs(clock - utcnow()) < timedelta(minutes=1)
    assert clock.tzinfo is not None


def test_only_who_has_the_turn_notes_something_about_it(backend: Backend) -> None:
    now = utcnow()
    with backend.databases.central() as session:
        control_turns.take(session, "metrics", seconds=45, now=now)
        control_turns.take(session, "metrics", seconds=45, now=now + timedelta(minutes=1))
        assert not control_turns.keep(session, "metrics", taken_at=now, done={"late": 1})
        later = now + timedelta(minutes=1)
        assert control_turns.keep(session, "metrics", taken_at=later, done={"in_time": 1})
        turn = control_turns.find(session, "metrics")
        assert turn is not None
        assert turn.done == {"in_time": 1}
        assert control_turns.find(session, "another") is None
