"""What programs print: on a screen that nobody reads, in a file on a full disk."""

import json
import os
import re
import signal
import sys
from pathlib import Path

from scripts.log_lines import LARGEST_FILE, LogLines
from scripts.screen import MOST_LINES
from tests.scripts.programs import LIVES, PATIENCE_SECONDS, is_alive, programs, wait_until


def test_lines_carry_the_name_and_are_kept_in_a_file(tmp_path: Path) -> None:
    talks = "sys.stderr.write('half'); sys.stderr.flush(); print('\\xe9\\x07 two'); answer(); bye()"
    with programs(tmp_path, f"web:0:{LIVES}", f"talker:0:{talks}") as stack:
        stack.all_answer()
        stack.process.send_signal(signal.SIGTERM)
        code, said = stack.ended()
    assert code == 0
    assert "web    | ready after" in said
    assert "talker | half" in said
    assert "half" in (tmp_path / "logs/talker.log").read_text()


def test_a_screen_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    chatty = "answer()\nwhile True: print('x' * 2000, flush=True); time.sleep(0.01)"
    with programs(tmp_path, f"web:0:{chatty}") as stack:
        stack.all_answer()
        pid = stack.pid("web")
        assert stack.process.stdout
        stack.process.stdout.close()
        log = tmp_path / "logs/web.log"
        size = log.stat().st_size
        wait_until(lambda: log.stat().st_size > size + 100_000, "the log grows on")
        assert is_alive(pid)
        stack.process.send_signal(signal.SIGTERM)
        assert stack.process.wait(PATIENCE_SECONDS) == 0
    assert not is_alive(pid)


CHATTY = "answer()\nwhile True: print('x' * 500, flush=True); time.sleep(0.0001)"


def test_a_screen_that_nobody_reads_stops_nobody(tmp_path: Path) -> None:
    """A pager on its first page, or Ctrl-S: the pipe is full, and a write to it never returns."""
    with programs(tmp_path, f"web:0:{CHATTY}", f"gpu:1:{LIVES}") as stack:
        stack.all_answer()
        log = tmp_path / "logs/web.log"
        wait_until(lambda: log.stat().st_size > 1_000_000, "the log grows on")
        first = stack.pid("gpu")
        (tmp_path / "gpu").unlink()
        os.kill(first, signal.SIGKILL)
        second = stack.pid("gpu")
        stack.process.send_signal(signal.SIGINT)
        assert stack.process.wait(10) == 0
        assert stack.story()[-2:] == ["gpu stops", "web stops"]
    assert not is_alive(second)


def test_a_screen_that_goes_on_tells_what_it_missed(tmp_path: Path) -> None:
    with programs(tmp_path, f"web:0:{CHATTY}") as stack:
        stack.all_answer()
        log = tmp_path / "logs/web.log"
        wait_until(lambda: log.stat().st_size > 2 * 500 * MOST_LINES, "more than the queue holds")
        assert stack.process.stdout
        seen = next(line for line in stack.process.stdout if "dropped" in line)
        assert re.fullmatch(r"\(\d+ lines were dropped here; the logs have them\)\n", seen)
        stack.process.send_signal(signal.SIGTERM)
        assert stack.ended()[0] == 0


def test_a_full_disk_is_said_once_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/web.log").symlink_to("/dev/full")
    talks = "answer()\nfor number in range(9): print('line', number, flush=True)\ntime.sleep(600)"
    with programs(tmp_path, f"web:0:{talks}") as stack:
        stack.all_answer()
        assert stack.process.stdout
        said = "".join(iter(stack.process.stdout.readline, "web | line 8\n"))
        stack.process.send_signal(signal.SIGTERM)
        code, rest = stack.ended()
    assert code == 0
    assert (said + rest).count("No space left on device") == 1


SAYS = """
import json
def say(**told):
    told = {"time": "2026-11-18T20:09:38.952Z", "level": "info", "logger": "tasks.control"} | told
    print(json.dumps(told), flush=True)
"""


def said_by(tmp_path: Path, talks: str, *options: str) -> tuple[str, str]:
    """What the screen shows, and what the file has, of a part that says this."""
    with programs(tmp_path, *options, f"web:0:{SAYS}{talks}; answer(); bye()") as stack:
        stack.all_answer()
        stack.process.send_signal(signal.SIGTERM)
        _, said = stack.ended()
    return said, (tmp_path / "logs/web.log").read_text()


def test_json_is_kept_in_the_file_and_shown_as_people_read_it(tmp_path: Path) -> None:
    screen, kept = said_by(tmp_path, "say(message='Done.', job_id='J', level='warning')")
    assert re.search(r"web \| \d\d:\d\d:\d\d warning  Done.  job J\n", screen)
    assert "job_id" not in screen
    assert json.loads(kept.splitlines()[0])["job_id"] == "J"


def test_the_trace_of_an_error_is_shown_below_it_with_the_name_of_the_part(tmp_path: Path) -> None:
    screen, _ = said_by(tmp_path, "say(message='No.', exception='Traceback\\nValueError: 7')")
    assert "info     No.\nweb | Traceback\nweb | ValueError: 7\n" in screen


def test_what_libraries_tell_of_their_day_is_in_the_file_only(tmp_path: Path) -> None:
    talks = (
        "say(logger='gunicorn.access', message='GET /quiet');"
        "say(logger='celery.beat', message='loud', level='error');"
        "say(message='ours')"
    )
    screen, kept = said_by(tmp_path, talks)
    assert ("quiet" in kept, "quiet" in screen) == (True, False)
    assert "loud" in screen
    assert "ours" in screen


def test_what_only_looks_like_a_line_of_ours_is_shown_as_it_is(tmp_path: Path) -> None:
    odd = ["{", "{}", '{"level": "info"}', '["time"]', '{"a": 1} and more']
    screen, _ = said_by(tmp_path, f"[print(one) for one in {odd!r}]")
    for one in odd:
        assert f"web | {one}\n" in screen


def test_what_a_part_said_last_is_told_as_people_read_it(tmp_path: Path) -> None:
    lines = LogLines(tmp_path, sys.stdout, names=["web"])
    lines.say("web", "ready")
    assert json.loads(lines.file("web").read_text())["message"] == "ready"
    [shown] = lines.tail("web")
    assert shown.endswith("info     ready")
    lines.close()


def test_a_log_that_grows_is_put_aside_so_that_the_disk_is_not_filled(tmp_path: Path) -> None:
    lines = 2 * LARGEST_FILE // 60_000
    talks = f"for number in range({lines}): print('x' * 60_000)"
    with programs(tmp_path, f"web:0:{talks}\nprint('the last')\nanswer()\n{LIVES}") as stack:
        stack.all_answer()
        log = tmp_path / "logs/web.log"
        wait_until(lambda: "the last" in log.read_text(), "everything is in the file")
        assert log.stat().st_size < LARGEST_FILE
        assert LARGEST_FILE < log.with_suffix(".log.1").stat().st_size < 1.1 * LARGEST_FILE
        stack.process.send_signal(signal.SIGTERM)
        assert stack.ended()[0] == 0
