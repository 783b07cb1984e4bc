"""A job that has made files, and storages that take them or don't."""

import hashlib
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_worker.lease_keeper import Held, LeaseKeeper
from gpu_worker.patience import Patience
from gpu_worker.provider import OutputFile
from gpu_worker.uploads import Uploads
from tests.gpu_worker.backend_replies import Json
from tests.gpu_worker.backend_stand_in import BackendStandIn

RESULT = "PUT /storage/result"


@dataclass(frozen=True)
class Outbox:
    held: Held
    keeper: LeaseKeeper
    folder: Path
    deadline_seconds: float = 60

    def made(self, name: str, content: bytes, mime_type: str = "image/png") -> OutputFile:
        path = self.folder / f"file-{len(list(self.folder.iterdir()))}"
        path.write_bytes(content)
        return OutputFile(name=name, mime_type=mime_type, path=path)

    def send(self, *files: OutputFile, patience_seconds: float = 10) -> list[Json]:
        uploads = Uploads(self.keeper, patience_seconds=patience_seconds)
        patience = Patience(stop=self.held.stop, deadline_seconds=self.deadline_seconds)
        return uploads.send(self.held, list(files), patience=patience)


@contextmanager
def outbox_of(webapp: BackendStandIn, folder: Path) -> Iterator[Outbox]:
    keeper = LeaseKeeper(
        webapp.backend(), idle_seconds=3600, first_seconds=3600, on_draining=lambda _draining: None
    )
    keeper.start()
    with keeper.hold(webapp.lease()) as held:
        yield Outbox(held, keeper, folder)
    keeper.close()


def described(name: str, content: bytes, mime_type: str = "image/png") -> Json:
    return {
        "name": name,
        "mime_type": mime_type,
        "size_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def place(content: bytes) -> str:
    return f"/storage/{hashlib.sha256(content).hexdigest()}"


@contextmanager
def slow_storage() -> Iterator[tuple[str, threading.Event]]:
    """Takes a little at a time, for as long as the test lasts. Says when it has begun."""
    began, over = threading.Event(), threading.Event()

    class Slow(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while not over.wait(0.01) and self.request.recv(4096):
                began.set()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/slow", began
        over.set()
        server.shutdown()
        thread.join()
