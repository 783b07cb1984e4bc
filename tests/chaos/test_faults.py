"""The faults of a run follow from its seed, and every kind of fault finds every target."""

from tests.chaos import faults
from tests.chaos.faults import LASTING, TARGETS, Kind


def test_the_same_seed_draws_the_same_faults_and_another_draws_others() -> None:
    first = list(faults.drawn(7, faults=50))
    assert list(faults.drawn(7, faults=50)) == first
    assert list(faults.drawn(8, faults=50)) != first


def test_a_short_run_is_the_beginning_of_a_long_one() -> None:
    assert list(faults.drawn(7, faults=1000))[:50] == list(faults.drawn(7, faults=50))


def test_in_the_long_form_everything_is_hurt_in_every_way() -> None:
    seen = {(fault.kind, fault.target) for fault in faults.drawn(1, faults=4000)}
    assert seen == {(kind, target) for kind in Kind for target in TARGETS[kind]}


def test_what_lasts_is_bounded() -> None:
    for fault in faults.drawn(2, faults=1000):
        assert 0 < fault.seconds <= max(LASTING.get(fault.kind, 0), 0.3)
