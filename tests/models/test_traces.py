"""W3C Trace Context: what is a `traceparent`, and what goes on under which id."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from models import logs, traces

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture(autouse=True)
def no_work_at_hand() -> Iterator[None]:
    logs.begin()
    yield
    traces.end()
    logs.end()


def test_a_callers_trace_goes_on_with_a_step_of_our_own() -> None:
    ours = traces.begin(GOOD)
    version, trace, parent, flags = ours.split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert parent != PARENT
    assert (traces.current(), traces.id_of(ours)) == (ours, TRACE)
    assert logs.known()["trace_id"] == TRACE


@pytest.mark.parametrize(
    ("given", "flags"), [("00", "00"), ("01", "01"), ("ff", "01"), ("02", "00"), ("03", "01")]
)
def test_only_the_word_on_sampling_is_passed_on(given: str, flags: str) -> None:
    assert traces.begin(f"00-{TRACE}-{PARENT}-{given}").endswith(f"-{flags}")


@pytest.mark.parametrize("later", [f"01-{TRACE}-{PARENT}-01", f"cc-{TRACE}-{PARENT}-01-what-else"])
def test_a_later_version_is_read_as_far_as_it_is_known(later: str) -> None:
    assert traces.begin(later).startswith(f"00-{TRACE}-")


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        "",
        "hello",
        GOOD + "-more",
        GOOD + " ",
        GOOD + "\n",
        f"{GOOD},{GOOD}",
        GOOD.upper(),
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}g-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"0-{TRACE}-{PARENT}-01",
        f"01-{TRACE}-{PARENT}-01more",
        "\u0660\u0660" + GOOD[2:],  # digits, but not ours
    ],
)
def test_what_is_no_traceparent_begins_a_trace_of_our_own(malformed: str | None) -> None:
    first, second = traces.begin(malformed), traces.begin(malformed)
    assert traces.id_of(first) not in (None, TRACE, traces.id_of(second))
    assert traces.id_of(malformed) in (None, TRACE)


def test_traces_of_threads_are_apart() -> None:
    mine, theirs = traces.begin(), ""

    def other() -> None:
        nonlocal theirs
        theirs = traces.begin()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert traces.current() == mine != theirs


@dataclass
class Item:
    ids: dict[str, str]
    traceparent: str | None = None


def test_an_item_of_a_sweep_has_its_own_trace_and_gives_it_back() -> None:
    run = traces.begin()
    with traces.about(Item({"job_id": "j"}, GOOD)):
        assert traces.current() == GOOD
        assert logs.known() == {"job_id": "j", "trace_id": TRACE}
    with traces.about(Item({"job_id": "k"})):
        assert traces.current() not in (run, GOOD)
    with traces.about("a key in the storage"):
        assert traces.current() == run
    assert (traces.current(), logs.known()) == (run, {"trace_id": traces.id_of(run)})
