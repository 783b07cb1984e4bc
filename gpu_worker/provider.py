"""What a provider is: something that runs a graph and gives files back.

The job knows providers only by this. Each is one file: self_hosted.py drives the ComfyUI
beside the worker.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file the graph needs, already on this machine."""

    placeholder: str  # the string that stands for the file in the graph
    path: Path
    filename: str
    mime_type: str
    content_hash: str


@dataclass(frozen=True, kw_only=True)
class Work:
    """One run: what to do, with what, for how long at most."""

    job_id: str
    graph: dict[str, Any]
    output_node_id: str | None
    assets: list[Asset]
    deadline_seconds: float
    folder: Path  # for the output files; removed after the job


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    name: str
    mime_type: str
    path: Path


Progress = Callable[[float, str | None], None]  # share done (0..1), node at work


class Provider(Protocol):
    name: str

    def take_over(self, folder: Path) -> None:
        """Learn from `folder` what a process before this one left at work; the next check ends
        it. What this one might leave is noted there too. It outlives jobs and crashes."""

    def check(self) -> None:
        """Return if it can take a job now; raise Unwell if not."""

    def run(self, work: Work, *, progress: Progress, stop: threading.Event) -> list[OutputFile]:
        """Run to the end. Raises JobFailed, Unwell, or Stopped soon after `stop` is set,
        with nothing of the job left running."""

    def close(self) -> None:
        """No more calls will come."""


class JobFailed(Exception):
    """The job itself is at fault: another try would end the same way."""

    def __init__(self, message: str, *, code: str = "job_failed", trace: str = "") -> None:
        super().__init__(message)
        self.message, self.code, self.trace = message, code, trace


class Unwell(Exception):
    """The provider is at fault: elsewhere, or later, the job may well succeed."""

    def __init__(self, message: str, *, trace: str = "") -> None:
        super().__init__(message)
        self.message, self.trace = message, trace


class Stopped(Exception):
    """Somebody asked for it: the run was interrupted before its end."""
