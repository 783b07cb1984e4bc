"""Real worker processes that talk to a scripted webapp."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from scripts.server_process import Program
from tests.gpu_worker.backend_stand_in import SECRET, BackendStandIn
from tests.gpu_worker.cached import wait_for

CODE = Path(__file__).parents[2]
START_SECONDS = 30.0
END_SECONDS = 20.0


@dataclass(frozen=True)
class Booted:
    program: Program
    process: Popen[bytes]

    def said(self) -> str:
        return self.program.log_text()

    def wait_until_it_says(self, text: str) -> None:
        wait_for(
            lambda: text in self.said() or self.process.poll() is not None, seconds=START_SECONDS
        )
        assert text in self.said(), self.said()

    def terminate(self) -> int:
        self.process.terminate()
        return self.code()

    def code(self) -> int:
        """How it ended."""
        return self.process.wait(END_SECONDS)


def environment(webapp: BackendStandIn, folder: Path, **changed: str) -> dict[str, str]:
    """`changed` are settings, by their names in lower case."""
    settings = {
        "backend_url": webapp.url,
        "redis_url": os.environ["TEST_REDIS_URL"],
        "fleet_slug": "cards",
        "fleet_secret": SECRET,
        "worker_id": "w1",
        "state_dir": str(folder / "state"),
        "stop_seconds": "3",
    } | changed
    given = {f"COMFYFLEET_{name.upper()}": value for name, value in settings.items()}
    return given | {"PYTHONPATH": str(CODE)}


@contextmanager
def booted(
    webapp: BackendStandIn, folder: Path, *, more: dict[str, str] | None = None, **changed: str
) -> Iterator[Booted]:
    variables = environment(webapp, folder, **changed) | (more or {})
    program = Program(name="The worker", log=folder / "worker.log", environment=variables)
    process = program.start([sys.executable, "-m", "gpu_worker"])
    try:
        yield Booted(program, process)
    finally:
        program.stop(process)
