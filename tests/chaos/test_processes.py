"""Signals reach the process that was meant, and its children."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.processes import Process, children, family

WITH_A_CHILD = "import os, time; os.fork(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(60)"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_family_is_a_process_and_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WITH_A_CHILD], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = {int(parent.stdout.readline()) for _ in range(2)}
        found = family(parent.pid)
        assert {one.pid for one in found} == pids
        assert [parent.pid, *children(parent.pid)] == [one.pid for one in found]
        for one in found:
            one.signal(signal.SIGSTOP)
            assert not one.has_ended()
            one.signal(signal.SIGKILL)
            assert one.has_ended(within_seconds=10)
            one.close()


def test_a_signal_to_one_that_has_ended_goes_nowhere() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        handle = Process(process.pid)
    assert handle.has_ended()
    handle.signal(signal.SIGKILL)
    handle.close()


def test_there_is_no_process_without_a_process() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(ProcessLookupError):
        Process(child)
