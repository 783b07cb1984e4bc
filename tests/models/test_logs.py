"""What processes say, line by line; and that both copies of the code that says it are one."""

import json
import logging
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models import logs

ROOT = Path(__file__).parents[2]
IDS = ("request_id", "job_id", "dispatch_id", "worker_id", "tenant_id", "trace_id")


@pytest.fixture(autouse=True)
def no_work_at_hand() -> Iterator[None]:
    logs.end()
    yield
    logs.end()


def line(message: str = "It rained.", *args: object, **given: Any) -> dict[str, Any]:
    """The line that a record makes, read as JSON."""
    record = logging.LogRecord("a.name", logging.WARNING, "file.py", 1, message, args, None)
    vars(record).update(given)
    text = logs.JsonLines().format(record)
    assert "\n" not in text
    told: dict[str, Any] = json.loads(text)
    return told


def raised() -> Any:
    try:
        raise ValueError("no good")
    except ValueError:
        return sys.exc_info()


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program of its own, with its output in a pipe."""
    return subprocess.run(
        [sys.executable, "-c", f"import logging, threading, warnings\n{program}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        timeout=60,
        check=False,
    )


def lines_of(program: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in run(program).stderr.splitlines()]


@pytest.mark.parametrize("name", ["logs.py", "log_secrets.py", "spans.py"])
def test_the_gpu_worker_has_the_same_file(name: str) -> None:
    assert (ROOT / "gpu_worker" / name).read_text() == (ROOT / "models" / name).read_text()


def test_a_line_says_when_how_bad_who_and_what() -> None:
    told = line("It %s.", "rained")
    assert set(told) == {"time", "level", "logger", "message"}
    assert (told["level"], told["logger"]) == ("warning", "a.name")
    assert told["message"] == "It rained."
    assert told["time"].endswith("Z")


def test_a_line_has_all_that_is_known_of_the_work_at_hand() -> None:
    logs.begin(request_id="r")
    logs.bind(**{name: name[0] for name in IDS[1:]}, nothing=None)
    told = line()
    assert {name: told[name] for name in IDS} == {name: name[0] for name in IDS}
    assert "nothing" not in told
    logs.begin(request_id="next")
    assert {name for name in IDS if name in line()} == {"request_id"}
    logs.end()
    assert not {name for name in IDS if name in line()}


def test_what_is_bound_about_one_thing_is_forgotten_behind_it() -> None:
    logs.begin(request_id="r")
    with logs.about(job_id="j"):
        logs.bind(dispatch_id="d")
        assert {"request_id", "job_id", "dispatch_id"} <= line().keys()
    assert not {"job_id", "dispatch_id"} & line().keys()


def test_nothing_is_bound_where_nobody_would_forget_it() -> None:
    logs.bind(job_id="j")
    assert "job_id" not in line()


def test_a_thread_of_its_own_knows_only_what_is_carried_to_it() -> None:
    logs.begin(job_id="j")
    seen: list[Any] = []
    steps = [lambda: seen.append(logs.known()), logs.carried(lambda: seen.append(logs.known()))]
    for step in steps:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    assert seen == [{}, {"job_id": "j"}]


def test_an_exception_is_a_field_of_its_line() -> None:
    told = line("It broke.", exc_info=raised())
    assert told["message"] == "It broke."
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("ValueError: no good")


def test_the_end_of_a_long_trace_is_kept_because_it_says_what_happened() -> None:
    error = ValueError("x" * 50_000 + " the end")
    told = line("y" * 50_000, exc_info=(ValueError, error, None))
    assert told["exception"].endswith(" the end")
    assert len(json.dumps(told)) < 16_000


@pytest.mark.parametrize(
    ("message", "args"), [("%d apples", ("no number",)), ("%s and %s", ("one",)), ("100 %", (1,))]
)
def test_a_line_with_the_wrong_arguments_is_said_all_the_same(
    message: str, args: tuple[object, ...]
) -> None:
    told = line(message, *args)
    assert message in told["message"]
    assert str(args[0]) in told["message"]


@pytest.mark.parametrize("odd", ["two\nlines", "\ud800", "\x00\x1b[2J", "ü", '"}', "\u2028"])
def test_whatever_is_said_stays_one_line_of_json(odd: str) -> None:
    logs.begin(job_id=odd)
    told = line("%s", odd, fields={odd: odd})
    assert (told["message"], told["job_id"], told[odd]) == (odd, odd, odd)


def test_fields_of_ones_own_stand_beside_the_others() -> None:
    told = line(fields={"status": 201, "ok": True, "of": {"a": [1, None]}, "odd": ROOT})
    assert (told["status"], told["ok"], told["of"]) == (201, True, {"a": [1, None]})
    assert told["odd"] == str(ROOT)


def test_no_line_commands_the_terminal() -> None:
    record = logging.LogRecord("a", logging.ERROR, "", 1, "\x1b[2J\x07gone\x9b", (), None)
    shown = logs.TextLines(has_colours=False).format(record)
    assert r"\x1b[2J\x07gone\x9b" in shown
    assert shown.isprintable()


def test_lines_for_people_show_the_job_and_how_to_find_the_rest() -> None:
    logs.begin(job_id="J" * 36, trace_id="T" * 32, tenant_id="N" * 36)
    record = logging.LogRecord("a", logging.INFO, "", 1, "Done.", (), None)
    shown = logs.TextLines(has_colours=False).format(record)
    assert shown.endswith(f"info     Done.  job {'J' * 36}, trace {'T' * 8}")
    record.msg = f"Job {'J' * 36} is done."
    assert logs.TextLines(has_colours=False).format(record).count("J" * 36) == 1


def test_everything_a_process_says_has_the_same_form() -> None:
    """Ours, a library's, a warning, and what nobody caught, in threads and in the main one."""
    told = lines_of(
        "from models import logs\n"
        "logs.start(worker_id='w1')\n"
        "logging.getLogger('ours').info('one')\n"
        "logging.getLogger('celery.worker').warning('two')\n"
        "warnings.warn('three', stacklevel=1)\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\n"
        "thread.start(); thread.join()\n"
        "raise LookupError('five')\n"
    )
    assert [one["level"] for one in told] == ["info", "warning", "warning", "critical", "critical"]
    assert ["ZeroDivisionError" in one.get("exception", "") for one in told].index(True) == 3
    assert "LookupError: five" in told[4]["exception"]
    assert {one["worker_id"] for one in told} == {"w1"}


def test_a_signal_in_the_middle_of_a_line_breaks_none() -> None:
    told = lines_of(
        "import os, signal\n"
        "from models import logs\n"
        "logs.start()\n"
        "signal.signal(signal.SIGALRM, lambda *_: logs.say_at_once('a signal'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "for number in range(3000): logging.getLogger('ours').info('line %d', number)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    said = [one["message"] for one in told]
    assert [one for one in said if one != "a signal"] == [f"line {n}" for n in range(3000)]
    assert "a signal" in said


@pytest.mark.parametrize(
    ("level", "said"), [("debug", 5), ("info", 4), ("warning", 3), ("error", 2), ("critical", 1)]
)
def test_the_level_is_where_saying_begins(level: str, said: int) -> None:
    told = lines_of(
        "from models import logs\n"
        f"logs.start('json', '{level}')\n"
        "for name in logs.LEVELS: getattr(logging.getLogger('x'), name)('said')\n"
    )
    assert [one["level"] for one in told] == list(logs.LEVELS[-said:])


def on_a_terminal(form: str, **environment: str) -> str:
    program = f"from models import logs; logs.start('{form}'); logs.logger.warning('careful')"
    terminal, other_end = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", program],
        stderr=other_end,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        timeout=60,
        check=True,
    )
    os.close(other_end)
    said = os.read(terminal, 10_000).decode()
    os.close(terminal)
    return said


@pytest.mark.parametrize("form", ["auto", "text"])
def test_a_terminal_gets_lines_with_colours(form: str) -> None:
    assert "\x1b[33mwarning \x1b[0m careful" in on_a_terminal(form)
    assert "warning  careful" in on_a_terminal(form, NO_COLOR="1")


def test_a_form_that_was_asked_for_counts_anywhere() -> None:
    assert json.loads(on_a_terminal("json"))["message"] == "careful"
    said = run("from models import logs; logs.start('text'); logs.logger.warning('careful')")
    assert said.stderr.endswith("warning  careful\n")
