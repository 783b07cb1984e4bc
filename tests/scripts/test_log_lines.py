"""What programs print: on a screen that nobody reads, in a file on a full disk."""

import os
import re
import signal
from pathlib import Path

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
