"""Programs that end, hang, refuse to stop or never begin, under a supervisor in its own process."""

import os
import signal
import time
from pathlib import Path

import pytest

from scripts.state_folder import FolderInUse, StateFolder
from tests.scripts.programs import LIVES, is_alive, programs, wait_until

STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); answer(); time.sleep(600)"
HAS_A_CHILD = """
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["MINE"] += ".child"
answer()
time.sleep(600)
"""


def test_tiers_start_in_order_and_stop_the_other_way_round(tmp_path: Path) -> None:
    with programs(tmp_path, f"work:2:{LIVES}", f"web:1:{LIVES}", f"broker:0:{LIVES}") as stack:
        stack.all_answer()
        pids = [stack.pid(name) for name in ("work", "web", "broker")]
        stack.process.send_signal(signal.SIGINT)
        code, said = stack.ended()
    assert code == 0, said
    order = ["broker starts", "web starts", "work starts", "work stops", "web stops"]
    assert stack.story() == [*order, "broker stops"]
    assert not any(map(is_alive, pids))


def test_a_program_that_dies_is_started_again_and_that_is_said(tmp_path: Path) -> None:
    with programs(tmp_path, f"web:0:{LIVES}") as stack:
        stack.all_answer()
        first = stack.pid("web")
        (tmp_path / "web").unlink()
        os.kill(first, signal.SIGKILL)
        second = stack.pid("web")
        assert first != second
        stack.process.send_signal(signal.SIGTERM)
        code, said = stack.ended()
    assert code == 0
    assert "web | ended with SIGKILL; it is started again in 0.5 s" in said
    assert not is_alive(second)


def test_a_program_that_ends_well_is_started_again_too(tmp_path: Path) -> None:
    with programs(tmp_path, "gpu:0:answer(); time.sleep(0.2); sys.exit(0)") as stack:
        stack.all_answer()
        wait_until(lambda: stack.story().count("gpu starts") == 3, "it starts a third time")
        stack.process.send_signal(signal.SIGTERM)
        code, said = stack.ended()
    assert code == 0
    assert "ended with code 0; it is started again in 0.5 s" in said
    assert "ended with code 0; it is started again in 1 s" in said


def test_the_children_of_a_program_that_died_are_gone_before_it_starts_again(
    tmp_path: Path,
) -> None:
    with programs(tmp_path, f"web:0:{HAS_A_CHILD}") as stack:
        stack.all_answer()
        child = stack.pid("web.child")
        assert is_alive(child)
        (tmp_path / "web").unlink()
        os.kill(int(Path(f"/proc/{child}/stat").read_text().split()[3]), signal.SIGKILL)
        stack.pid("web")
        assert not is_alive(child)
        stack.process.send_signal(signal.SIGTERM)
        assert stack.ended()[0] == 0


def test_nobody_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    words = [f"web:0:{LIVES}", f"gpu-1:1:{LIVES}", f"gpu-2:1:{LIVES}"]
    with programs(tmp_path, *words) as stack:
        stack.all_answer()
        pids = [stack.pid(name) for name in ("web", "gpu-1", "gpu-2")]
        stack.process.kill()
        stack.process.wait()
        with StateFolder(tmp_path).locked():  # waits for what is left
            assert not any(map(is_alive, pids))


def test_a_program_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    with programs(tmp_path, f"web:0:{LIVES}", f"gpu:1:{STUBBORN}") as stack:
        stack.all_answer()
        pids = [stack.pid("web"), stack.pid("gpu")]
        for _ in range(3):  # an impatient person
            stack.process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        code, said = stack.ended()
    assert code == 0
    assert "gpu | did not stop in 2 s: killed" in said
    assert stack.story()[-1] == "web stops"
    assert not any(map(is_alive, pids))


def test_a_program_that_never_answers_ends_the_stack_with_its_log(tmp_path: Path) -> None:
    deaf = "print('I am deaf', flush=True); time.sleep(600)"
    words = [f"web:0:{LIVES}", f"gpu:1:{deaf}"]
    with programs(tmp_path, *words, START_SECONDS="1") as stack:
        code, said = stack.ended()
    assert code == 1
    assert "gpu did not answer within 1 s. Its log ends:\n  I am deaf" in said
    assert not (tmp_path / "all").exists()
    assert sorted(stack.story()) == ["gpu starts", "gpu stops", "web starts", "web stops"]


def test_a_program_that_keeps_ending_ends_the_stack_with_its_log(tmp_path: Path) -> None:
    with programs(tmp_path, "gpu:0:print('No such GPU', flush=True); sys.exit(3)") as stack:
        code, said = stack.ended()
    assert code == 1
    assert "gpu ended 4 times before it answered. Its log ends:" in said
    assert said.count("  No such GPU") == 4


def test_ctrl_c_during_the_start_stops_what_has_started(tmp_path: Path) -> None:
    with programs(tmp_path, f"web:0:{LIVES}", "gpu:1:time.sleep(600)") as stack:
        wait_until(lambda: "gpu starts" in stack.story(), "the second tier starts")
        stack.process.send_signal(signal.SIGINT)
        assert stack.ended()[0] == 0
    assert stack.story()[-2:] == ["gpu stops", "web stops"]


def test_a_folder_has_one_stack_at_a_time(tmp_path: Path) -> None:
    first, second = StateFolder(tmp_path), StateFolder(tmp_path)
    assert not second.is_in_use()
    with first.locked():
        assert second.is_in_use()
        with pytest.raises(FolderInUse, match="in use by a stack that runs"), second.locked():
            pass
    with second.locked():
        pass


def test_a_folder_keeps_its_secrets_to_itself(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "new")
    state.path.mkdir()
    drawn = state.secrets()
    assert StateFolder(tmp_path / "new").secrets() == drawn
    assert len(drawn["secret_key"]) >= 32
    state.write_ready({"api_url": "http://127.0.0.1:1"})
    awkward = {"COMFYFLEET_A": "with 'quotes' and $dollars", "COMFYFLEET_B": "x=y z=1"}
    state.write_environment(awkward)
    assert state.read_environment() == awkward
    for file in (state.secrets_file, state.ready_file, state.environment_file):
        assert file.stat().st_mode & 0o777 == 0o600
    state.remove_ready()
    assert state.read_ready() is None
