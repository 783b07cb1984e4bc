"""The process that decodes: what the kernel does not let it do."""

import subprocess
import sys
from pathlib import Path
from signal import SIGALRM, SIGKILL, SIGXFSZ

import pytest

from models import media

RESTRICTED = """
import signal, sys, time
from models.media_probe import Limits, restrict
restrict(Limits("image/png", 1, 1, 1, seconds=1, memory_mb=200))
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RESTRICTED + program],
        cwd=folder,
        env=media._environment(),
        capture_output=True,
        text=True,
        timeout=20,
    )


@pytest.mark.parametrize(
    ("program", "signal"),
    [
        ("time.sleep(9)", SIGALRM),
        ("signal.alarm(0)\nwhile True: pass", SIGKILL),
        (
            "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nopen('f', 'wb').write(bytes(99999))",
            SIGXFSZ,
        ),
    ],
)
def test_it_is_ended_when_it_goes_too_far(tmp_path: Path, program: str, signal: int) -> None:
    assert run(program, tmp_path).returncode == -signal


def test_it_gets_no_more_memory_than_allowed(tmp_path: Path) -> None:
    assert "MemoryError" in run("bytes(300_000_000)", tmp_path).stderr


def test_it_starts_without_the_database_and_the_web(tmp_path: Path) -> None:
    """It starts for every upload, so it has to start quickly."""
    loaded = "print({'sqlalchemy', 'flask', 'boto3', 'av', 'PIL'} & set(sys.modules))"
    assert run(loaded, tmp_path).stdout == "set()\n"


def test_the_decoding_process_knows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYFLEET_SECRET_KEY", "secret")
    assert "secret" not in media._environment().values()
