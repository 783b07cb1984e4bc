"""The folder of a stack on one machine: all that survives a restart, and its ready file.

Two locks guard it. `up.lock` is held by the process that supervises, and tells a second one to
go away. `parts.lock` is held by every part as well, so after a crash the next start waits
until the last of them is gone, before it touches their files and ports.

Whatever holds a secret is readable by its owner only.
"""

import fcntl
import json
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models.atomic_files import draft, publish

LEFTOVER_SECONDS = 12.0
POLL_SECONDS = 0.1


class FolderInUse(RuntimeError):
    """Another stack uses this folder."""


class StateFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.ready_file = self.path / "ready.json"
        self.environment_file = self.path / "environment"
        self.secrets_file = self.path / "secrets.json"
        self.machines_file = self.path / "machines.json"
        self.logs = self.path / "logs"

    def folder(self, name: str) -> Path:
        made = self.path / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the folder. Yields the open lock that every part shall inherit."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self._lock_file("up").open("a") as ours, self._lock_file("parts").open("a") as shared:
            if not _taken(ours.fileno()):
                raise FolderInUse(
                    f"{self.path} is in use by a stack that runs. Stop it first, or choose "
                    "another folder with --state."
                )
            self._wait_for_leftovers(shared.fileno())
            yield shared.fileno()

    def _lock_file(self, name: str) -> Path:
        return self.path / f"{name}.lock"

    def _wait_for_leftovers(self, lock: int) -> None:
        deadline = time.monotonic() + LEFTOVER_SECONDS
        while not _taken(lock):
            if time.monotonic() > deadline:
                raise FolderInUse(
                    f"Parts of an earlier run in {self.path} are still there and do not end. "
                    f"Find them with: fuser {self.path}/parts.lock"
                )
            time.sleep(POLL_SECONDS)

    def is_in_use(self) -> bool:
        """Whether a stack runs here at this moment."""
        lock = self._lock_file("up")
        if not lock.exists():
            return False
        with lock.open("a") as file:
            return not _taken(file.fileno())

    def secrets(self) -> dict[str, str]:
        """Drawn once, and the same ever after."""
        known = self._read(self.secrets_file) or {}
        drawn = {
            "secret_key": secrets.token_urlsafe(48),
            "fleet_secret": secrets.token_urlsafe(32),
            "redis_password": secrets.token_urlsafe(24),
            "demo_email": "demo@comfyfleet.dev",
            "demo_password": secrets.token_urlsafe(12),
            "admin_email": "admin@comfyfleet.dev",
            "admin_password": secrets.token_urlsafe(24),
            "admin_token": "",
        }
        if missing := drawn.keys() - known.keys():
            known |= {name: drawn[name] for name in missing}
            self.keep_secrets(known)
        return known

    def keep_secrets(self, known: Mapping[str, str]) -> None:
        self._write(self.secrets_file, json.dumps(known, indent=2) + "\n")

    def write_ready(self, document: Mapping[str, Any]) -> None:
        self._write(self.ready_file, json.dumps(document, indent=2) + "\n")

    def read_ready(self) -> dict[str, Any] | None:
        return self._read(self.ready_file)

    def remove_ready(self) -> None:
        self.ready_file.unlink(missing_ok=True)

    def write_machines(self, document: Mapping[str, Any]) -> None:
        """For the drill: where each GPU worker's ComfyUI and instance metadata are."""
        self._write(self.machines_file, json.dumps(document, indent=2) + "\n")

    def read_machines(self) -> dict[str, Any] | None:
        return self._read(self.machines_file)

    def write_environment(self, settings: Mapping[str, str]) -> None:
        """For people and other commands: `set -a; . FOLDER/environment`."""
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in sorted(settings.items())]
        self._write(self.environment_file, "".join(lines))

    def read_environment(self) -> dict[str, str]:
        if not self.environment_file.exists():
            return {}
        words = shlex.split(self.environment_file.read_text())
        pairs = (word.partition("=") for word in words)
        return {name: value for name, _, value in pairs}

    def _write(self, path: Path, text: str) -> None:
        with draft(self.path) as file:  # made with mode 0600
            file.write(text.encode())
            publish(file, path, root=self.path)

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            document: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        return document


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
