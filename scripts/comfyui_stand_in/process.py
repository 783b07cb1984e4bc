"""The stand-in as a child process, for as long as a `with` lasts."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scripts.server_process import Program, ServerUnavailable, running

_CODE = Path(__file__).parents[2]


class ComfyUI:
    """A running stand-in. Whatever was done to it, it is gone at the end of its `with`."""

    def __init__(self, folder: Path, *, port: int = 0, options: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self.port = port
        self.pid = 0
        self.options = options
        self.program = Program(
            name="The ComfyUI stand-in",
            log=self.folder / "comfyui.log",
            environment={"PYTHONPATH": str(_CODE), "PYTHONUNBUFFERED": "1"},
        )
        self._held = ExitStack()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        held = running(self.program, self._command, self._answers, port=self.port)
        try:
            self.port = self._held.enter_context(held)
        except ServerUnavailable:
            self.pid = 0  # it is gone, and its id may be another's
            raise

    def stop(self) -> None:
        if self.pid:
            self.go_on()  # a stopped process would not hear that it shall end
        self._held.close()
        self.pid = 0

    def restart(self) -> None:
        """On the same port and folder; queue and history are lost."""
        self.stop()
        self.start()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def stop_answering(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Until it is waited for, in stop(), its id can't have passed to another process."""
        os.kill(self.pid, number)

    def _command(self, port: int) -> list[str]:
        options = ["--port", str(port), "--folder", str(self.folder), *self.options]
        return [sys.executable, "-m", "scripts.comfyui_stand_in", *options]

    def _answers(self, port: int, pid: int) -> bool:
        self.pid = pid
        return f"ComfyUI stand-in on http://127.0.0.1:{port}\n" in self.program.log_text()


@contextmanager
def comfyui(folder: Path, *, port: int = 0, options: Sequence[str] = ()) -> Iterator[ComfyUI]:
    server = ComfyUI(folder, port=port, options=options)
    try:
        server.start()
        yield server
    finally:
        server.stop()
