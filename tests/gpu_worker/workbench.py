"""A worker without Celery: everything a job needs, and small providers to run it with."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_worker import job
from gpu_worker.assets import AssetCache, Patience
from gpu_worker.job import Tools
from gpu_worker.lease_keeper import LeaseKeeper
from gpu_worker.provider import OutputFile, Progress, Provider, Stopped, Unwell, Work
from gpu_worker.scale_in import ScaleInProtection
from gpu_worker.uploads import Uploads
from tests.gpu_worker.backend_replies import Json
from tests.gpu_worker.backend_stand_in import BackendStandIn

REPORTS = ("complete", "fail", "requeue")
PICTURE = b"a picture"


class Painter:
    """Writes one file, and notes what it was given."""

    name = "small"

    def __init__(self, mime_type: str = "image/png") -> None:
        self.mime_type = mime_type
        self.works: list[Work] = []
        self.read: list[bytes] = []

    def take_over(self, folder: Path) -> None:
        assert folder.is_dir()

    def check(self) -> None:
        return

    def close(self) -> None:
        return

    def run(self, work: Work, *, progress: Progress, stop: threading.Event) -> list[OutputFile]:
        del stop  # too quick to be stopped
        self.works.append(work)
        self.read = [asset.path.read_bytes() for asset in work.assets]
        progress(1.0, "Paint")
        path = work.folder / "picture"
        path.write_bytes(PICTURE)
        return [OutputFile(name="picture.png", mime_type=self.mime_type, path=path)]


class Waiter(Painter):
    """Works until it is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()

    def run(self, work: Work, *, progress: Progress, stop: threading.Event) -> list[OutputFile]:
        super().run(work, progress=progress, stop=stop)
        self.began.set()
        assert stop.wait(20), "nobody stopped it"
        raise Stopped


class Failing(Painter):
    """Leaves files behind and raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def run(self, work: Work, *, progress: Progress, stop: threading.Event) -> list[OutputFile]:
        super().run(work, progress=progress, stop=stop)
        raise self.error


@dataclass
class Workbench:
    webapp: BackendStandIn
    tools: Tools
    unwell: list[Unwell] = field(default_factory=list)

    def use(self, provider: Provider, **changed: Any) -> None:
        self.tools = replace(self.tools, providers={"small": provider}, **changed)

    def run(self, **lease: Any) -> str:
        return job.run(self.tools, self.webapp.lease(**lease))

    def reports(self) -> list[tuple[str, Json]]:
        """What was reported, without what every report has."""
        asked = [asked for asked in self.webapp.asked if asked.name in REPORTS]
        assert all(one.body["lease_token"] == "lease-1" for one in asked)
        proof = ("dispatch_id", "lease_token")
        return [
            (one.name, {key: value for key, value in one.body.items() if key not in proof})
            for one in asked
        ]

    def report(self) -> tuple[str, Json]:
        """The only one."""
        [report] = self.reports()
        return report

    def is_tidy(self) -> bool:
        return list(self.tools.folder.iterdir()) == [] and self.tools.keeper.held is None


@contextmanager
def workbench(webapp: BackendStandIn, folder: Path) -> Iterator[Workbench]:
    backend = webapp.backend()
    keeper = LeaseKeeper(
        backend,
        idle_seconds=3600,
        first_seconds=0.05,
        again_seconds=0.05,
        on_draining=lambda _draining: None,
    )
    keeper.start()
    (folder / "jobs").mkdir()
    unwell: list[Unwell] = []
    note_unwell: Callable[[Unwell], None] = unwell.append
    tools = Tools(
        backend=backend,
        keeper=keeper,
        cache=AssetCache(folder / "cache", 10**6, patience=Patience(seconds=0.1)),
        uploads=Uploads(keeper, patience_seconds=5),
        providers={"small": Painter()},
        protection=ScaleInProtection(enabled=False, instance_id="", group=""),
        folder=folder / "jobs",
        job_seconds=30,
        stop_reason=lambda: "spot interruption",
        on_unwell=note_unwell,
        report_seconds=10,
        stopped_seconds=1,
    )
    yield Workbench(webapp, tools, unwell)
    keeper.close()
    tools.cache.close()
    backend.close()
