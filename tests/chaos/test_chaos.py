"""The short form of the chaos run; docs/chaos.md tells what it is and how to have it again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = 50
CODE = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_and_nothing_is_left_over_whatever_is_hurt(tmp_path: Path) -> None:
    ours = ("COMFYFLEET_", "TEST_")  # what the tests were told is not for the run
    ran = subprocess.run(
        [sys.executable, "-m", "tests.chaos", f"--faults={FAULTS}", f"--state={tmp_path}"],
        env={k: v for k, v in os.environ.items() if not k.startswith(ours)},
        cwd=CODE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
