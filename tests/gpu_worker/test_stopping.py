"""How a worker ends: once, in order, and in time."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_worker.stopping import Stopping
from tests.gpu_worker.cached import wait_for

CODE = Path(__file__).parents[2]
LONG = 1e6  # longer than any run of the tests: this process must not be ended by it


@pytest.fixture
def told() -> list[str]:
    return []


def stopping(told: list[str]) -> Stopping:
    made = Stopping(seconds=LONG)
    for number in (1, 2, 3):
        made.on_begin(lambda number=number: told.append(f"step {number}"))  # type: ignore[misc]
    made.on_leave(lambda: told.append("leave"))
    return made


def test_it_begins_once_and_takes_its_steps_in_order(told: list[str]) -> None:
    one = stopping(told)
    assert not one.began.is_set()
    one.begin("spot interruption")
    assert one.began.is_set()
    one.begin("shut down by an operator")
    assert told == ["step 1", "step 2", "step 3"]
    assert one.reason == "spot interruption"


def test_without_a_reason_it_is_a_shutdown(told: list[str]) -> None:
    one = stopping(told)
    one.begin()
    assert one.reason == "shutdown"


def test_many_threads_begin_it_once(told: list[str]) -> None:
    one = stopping(told)
    together = threading.Barrier(4, timeout=10)

    def begin(name: str) -> None:
        together.wait()
        one.begin(name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(begin, ["a", "b", "c", "d"]))
    assert told == ["step 1", "step 2", "step 3"]
    assert one.reason in ("a", "b", "c", "d")


def test_a_step_that_goes_wrong_does_not_keep_the_others(
    told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    one = Stopping(seconds=LONG)

    def wrong() -> None:
        raise ValueError("a bug")

    one.on_begin(wrong)
    one.on_begin(lambda: told.append("the next"))
    one.begin()
    assert told == ["the next"]
    assert "A step of stopping went wrong." in caplog.text


def test_a_stop_begun_by_a_signal_in_the_middle_of_itself_does_not_hang(told: list[str]) -> None:
    one = stopping(told)
    one.on_begin(lambda: one.begin("again"))
    one.on_begin(one.leave)
    one.begin("first")
    assert told == ["step 1", "step 2", "step 3", "leave"]


def test_it_leaves_once(told: list[str]) -> None:
    one = stopping(told)
    one.begin()
    one.leave()
    one.leave()
    assert told[3:] == ["leave"]


def test_it_leaves_only_after_the_job_was_handed_back(told: list[str]) -> None:
    one, seconds = Stopping(seconds=LONG), list[float]()

    def hand_back(at_most: float) -> None:
        seconds.append(at_most)
        told.append("handed back")

    one.on_leave(lambda: told.append("leave"), after=hand_back)
    one.begin()
    one.leave()
    assert told == ["handed back", "leave"]
    assert LONG / 2 < seconds[0] < LONG


def test_who_comes_second_waits_until_it_has_left() -> None:
    may_leave, told = threading.Event(), list[str]()

    def leave() -> None:
        may_leave.wait(10)
        told.append("left")

    one = Stopping(seconds=LONG)
    one.on_leave(leave)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.leave)
        wait_for(one._leaves.is_set)
        second = pool.submit(lambda: (one.leave(), list(told)))
        time.sleep(0.05)  # for a second that would not wait
        may_leave.set()
        first.result(timeout=10)
        assert second.result(timeout=10)[1] == ["left"]


# In a process of its own, which ends by it


def ended(program: str) -> tuple[int, str]:
    """The exit code and what was said, of a process that does not end by itself."""
    imports = "import logging, sys, threading, time\nfrom gpu_worker.stopping import Stopping\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}logging.basicConfig()\n{program}\ntime.sleep(60)\n"],
        cwd=CODE,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_process_that_hangs_ends_all_the_same_and_has_left() -> None:
    code, said = ended(
        "one = Stopping(seconds=1.6)\n"
        "one.on_leave(lambda: print('left', flush=True))\n"
        "one.begin('test')"
    )
    assert code == 0
    assert "left" in said
    assert "Something hangs; the worker ends all the same." in said


@pytest.mark.parametrize("seconds", [0.4, 2.0])
def test_handing_back_has_time_before_leaving_however_short_the_whole_is(seconds: float) -> None:
    code, said = ended(
        f"one, handed_back = Stopping(seconds={seconds}), threading.Event()\n"
        "def leave(): print('left after', handed_back.is_set(), flush=True)\n"
        "one.on_leave(leave, after=handed_back.wait)\n"
        "threading.Timer(0.1, handed_back.set).start()\n"
        "one.begin('test')"
    )
    assert code == 0
    assert "left after True" in said


def test_a_process_that_hangs_while_leaving_ends_with_0() -> None:
    code, said = ended(
        "one = Stopping(seconds=0.5)\n"
        "one.on_leave(lambda: time.sleep(60))\n"
        "one.begin('test')\n"
        "one.leave()"
    )
    assert code == 0
    assert "Something hangs" in said


def test_a_process_that_hangs_in_a_step_ends_with_0() -> None:
    code, said = ended(
        "one = Stopping(seconds=0.5)\n"
        "one.on_begin(lambda: time.sleep(60))\n"
        "one.on_leave(lambda: print('left', flush=True))\n"
        "one.begin('test')"
    )
    assert (code, "left" in said) == (0, True)


def test_a_process_that_is_done_does_not_wait_for_its_deadline() -> None:
    code, said = ended("one = Stopping(seconds=60)\none.begin('test')\none.leave()\nsys.exit(3)")
    assert code == 3
    assert "Something hangs" not in said
