"""Graphs to run, and a provider that runs them on a ComfyUI stand-in, for tests."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from PIL import Image

from gpu_worker.provider import Asset, OutputFile, Work
from gpu_worker.self_hosted import SelfHosted

Graph = dict[str, Any]

SECONDS = 20.0  # a test that waits longer than this for anything has failed
_colours = itertools.count(1)


def empty_image(*, colour: int | None = None, prefix: str = "tiny") -> Graph:
    """The tiniest graph. A colour of its own keeps it out of the cache."""
    size = {"width": 64, "height": 64, "batch_size": 1}
    colour = next(_colours) if colour is None else colour
    return {
        "1": {"class_type": "EmptyImage", "inputs": {**size, "color": colour}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": prefix}},
    }


def slow_image(seconds: float, *, prefix: str = "slow") -> Graph:
    graph = empty_image(prefix=prefix)
    graph["3"] = {"class_type": "SlowImage", "inputs": {"image": ["1", 0], "seconds": seconds}}
    graph["2"]["inputs"]["images"] = ["3", 0]
    return graph


def emitting(ui: str) -> Graph:
    return {"1": {"class_type": "EmitOutputs", "inputs": {"ui": ui}}}


def hanging() -> Graph:
    return {"1": {"class_type": "HangForever", "inputs": {}}}


def picture(path: Path, colour: tuple[int, int, int] = (250, 200, 10)) -> Path:
    Image.new("RGB", (8, 8), colour).save(path)
    return path


def asset(path: Path, *, placeholder: str, mime_type: str = "image/png") -> Asset:
    return Asset(
        placeholder=placeholder,
        path=path,
        filename=path.name,
        mime_type=mime_type,
        content_hash="0123456789abcdef" * 4,
    )


@dataclass
class Told:
    """The progress a run told, and by whom."""

    shares: list[float] = field(default_factory=list)
    nodes: list[str | None] = field(default_factory=list)

    def __call__(self, share: float, node: str | None) -> None:
        self.shares.append(share)
        self.nodes.append(node)


@dataclass
class Runner:
    """A provider with a folder, as a job would use it."""

    url: str
    folder: Path
    provider: SelfHosted
    stop: threading.Event = field(default_factory=threading.Event)
    told: Told = field(default_factory=Told)

    def run(self, graph: Graph, **given: Any) -> list[OutputFile]:
        options: dict[str, Any] = {
            "output_node_id": None,
            "assets": [],
            "deadline_seconds": SECONDS,
        }
        work = Work(job_id="job-1", graph=graph, folder=self.folder, **(options | given))
        return self.provider.run(work, progress=self.told, stop=self.stop)

    @contextmanager
    def running(
        self, graph: Graph, *, until_in: str = "queue_running", **given: Any
    ) -> Iterator["Future[list[OutputFile]]"]:
        """The run goes on beside the test; entered when ComfyUI has it. Stopped at the end."""
        before = set(self.queue(until_in))
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self.run, graph, **given)
            try:
                until(lambda: future.done() or set(self.queue(until_in)) - before)
                yield future
            finally:
                self.stop.set()
        self.stop.clear()

    def queue(self, part: str) -> list[str]:
        rows = requests.get(f"{self.url}/queue", timeout=SECONDS).json()[part]
        return [row[1] for row in rows]

    def is_idle(self) -> bool:
        return not self.queue("queue_running") and not self.queue("queue_pending")

    def post(self, graph: Graph, **more: Any) -> str:
        """A prompt of somebody else's."""
        answer = requests.post(
            f"{self.url}/prompt", json={"prompt": graph, **more}, timeout=SECONDS
        )
        answer.raise_for_status()
        prompt_id: str = answer.json()["prompt_id"]
        return prompt_id

    def interrupt(self, prompt_id: str) -> None:
        requests.post(f"{self.url}/interrupt", json={"prompt_id": prompt_id}, timeout=SECONDS)

    def history(self, prompt_id: str) -> Any:
        return requests.get(f"{self.url}/history/{prompt_id}", timeout=SECONDS).json()

    def faults(self, **wanted: Any) -> None:
        answer = requests.post(f"{self.url}/stand-in/faults", json=wanted, timeout=SECONDS)
        answer.raise_for_status()

    def posted(self) -> list[dict[str, Any]]:
        prompts: list[dict[str, Any]] = requests.get(
            f"{self.url}/stand-in/prompts", timeout=SECONDS
        ).json()
        return prompts


@contextmanager
def runner(url: str, folder: Path, **options: Any) -> Iterator[Runner]:
    folder.mkdir(exist_ok=True)
    provider = SelfHosted(url, **options)
    try:
        yield Runner(url, folder, provider)
    finally:
        provider.close()


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "It never came true."
        time.sleep(0.01)
