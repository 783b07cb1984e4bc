"""What several web processes count together, on a real gunicorn, while some of them are killed."""

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from scripts.cli_serve import gunicorn_command
from scripts.server_process import free_port
from tasks import catalog
from tasks.backend import Backend
from tests.fixtures import make_person
from tests.tasks import orders
from webapp import shared_counts

WORKERS = 3


@dataclass
class Server:
    address: str
    process: subprocess.Popen[bytes]
    folder: Path

    def workers(self) -> list[int]:
        """Process ids; the kernel lists children by the thread that made them."""
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in tasks.split()]

    def told(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        with requests.Session() as own_connection:  # so that any of the workers may answer
            answer = own_connection.get(f"{self.address}/metrics", timeout=20)
        assert answer.status_code == 200, answer.text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def counted(self, route: str, status: str = "200") -> float:
        labels = frozenset({("route", route), ("method", "GET"), ("status", status)})
        return self.told().get(("comfyfleet_http_requests_total", labels), 0)


@pytest.fixture
def server(sqlite: Backend, tmp_path: Path) -> Iterator[Server]:
    catalog.seed_demo(sqlite)
    folder, port = tmp_path / "counts", free_port()
    folder.mkdir()
    settings = vars(sqlite.settings).items()
    given = {f"COMFYFLEET_{name.upper()}": str(value) for name, value in settings}
    command = gunicorn_command(
        host="127.0.0.1", port=port, workers=WORKERS, threads=2, graceful_seconds=2
    )
    log = tmp_path / "gunicorn.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | given | {shared_counts.FOLDER: str(folder)},
            stdout=output,
            stderr=output,
        )
    made = Server(f"http://127.0.0.1:{port}", process, folder)
    try:
        for _ in range(600):
            try:
                requests.get(f"{made.address}/healthz", timeout=1)
                break
            except requests.RequestException:
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
        yield made
        assert "Traceback" not in log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def test_all_workers_tell_the_same_counts_and_figures_only_once(
    server: Server, sqlite: Backend
) -> None:
    ada = make_person(sqlite, tokens=100)
    for _ in range(3):
        orders.order(sqlite, ada)
    before = server.counted("/readyz")
    for _ in range(40):
        with requests.Session() as own_connection:
            assert own_connection.get(f"{server.address}/readyz", timeout=20).ok
    fleet = frozenset({("fleet", "gpu-default"), ("stage", "dev")})
    for _ in range(12):
        samples = server.told()
        assert samples["comfyfleet_queue_depth", fleet] == 3
        assert server.counted("/readyz") == before + 40
    assert len(list(server.folder.glob("counter_*.db"))) <= WORKERS + 1  # and the one before forks
    assert server.counted("/metrics") >= 12


@dataclass
class Load:
    """Asks again and again, whatever becomes of the answers."""

    address: str
    asked: int = 0
    answered: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> "Load":
        while not self.over.is_set():
            self.asked += 1
            try:
                answer = requests.get(f"{self.address}/api/nothing/{uuid4()}", timeout=20)
                self.answered += answer.status_code == 404
            except requests.RequestException:
                continue
        return self


def test_nothing_is_lost_or_doubled_when_workers_are_killed(server: Server) -> None:
    loads = [Load(server.address) for _ in range(4)]
    seen = [0.0]
    with ThreadPoolExecutor(len(loads)) as threads:
        running = [threads.submit(load.run) for load in loads]
        try:
            for _ in range(12):
                if workers := server.workers():
                    os.kill(random.choice(workers), signal.SIGKILL)
                time.sleep(0.3)
                seen.append(patiently(lambda: server.counted("(none)", "404")))
        finally:
            for load in loads:
                load.over.set()
        done = [one.result(timeout=60) for one in running]
    counted = patiently(lambda: server.counted("(none)", "404"))
    assert seen == sorted(seen), "a counter went back"
    assert sum(load.answered for load in done) <= counted <= sum(load.asked for load in done)
    assert counted > 0
    assert len(list(server.folder.glob("counter_*.db"))) <= WORKERS + 3


def patiently(ask: Callable[[], float]) -> float:
    """Until a worker that lives answers."""
    for _ in range(100):
        try:
            return ask()
        except requests.RequestException:
            time.sleep(0.1)
    return ask()


# The folder


def test_folders_of_dead_servers_go_and_those_of_living_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_counts, "PREFIX", f"comfyfleet-test-{uuid4().hex[:8]}-")
    dead, alive, new = (shared_counts.make_folder() for _ in range(3))
    for folder in (dead, alive, new):
        (folder / "0.lock").touch()
    for folder in (dead, alive):
        os.utime(folder, (time.time() - 3600,) * 2)
    with (alive / "0.lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fresh = shared_counts.make_folder()
        assert [one.exists() for one in (dead, alive, new, fresh)] == [False, True, True, True]
    for folder in (alive, new, fresh):
        monkeypatch.setenv(shared_counts.FOLDER, str(folder))
        shared_counts.remove_folder()
        assert not folder.exists()


def test_a_folder_that_somebody_else_made_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shared_counts.FOLDER, str(tmp_path))
    shared_counts.remove_folder()
    assert tmp_path.exists()


LITTLE_ROOM = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
"""
COUNT_ALONE = """
from webapp import http_figures
http_figures.REQUESTS.labels("/x", "GET", 200).inc()
http_figures.STREAMS_OPEN.inc()
print(http_figures.ARE_SHARED, http_figures.REQUESTS.labels("/x", "GET", 200)._value.get())
"""


@pytest.mark.parametrize("folder", ["missing", "full", "unset"])
def test_without_a_folder_that_can_be_used_a_process_counts_alone(
    tmp_path: Path, folder: str
) -> None:
    given = {name: value for name, value in os.environ.items() if name != shared_counts.FOLDER}
    if folder != "unset":
        given[shared_counts.FOLDER] = str(tmp_path / folder)
    code = COUNT_ALONE
    if folder == "full":
        (tmp_path / folder).mkdir()
        code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        code = code.replace("\\\n", "\n") + COUNT_ALONE
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["False", "1.0"], done.stderr


def test_whoever_takes_a_slot_counts_on_where_its_last_holder_stopped(tmp_path: Path) -> None:
    given = os.environ | {shared_counts.FOLDER: str(tmp_path)}
    killed = COUNT_ALONE + "import os; os.kill(os.getpid(), 9)"
    for code, expected in [(killed, ""), (COUNT_ALONE, "True 2.0"), (COUNT_ALONE, "True 3.0")]:
        done = subprocess.run(
            [sys.executable, "-uc", code], env=given, capture_output=True, text=True, timeout=60
        )
        assert expected in done.stdout, done.stderr
    assert len(list(tmp_path.glob("counter_*.db"))) == 1


def test_what_a_killed_process_had_open_is_not_told(tmp_path: Path) -> None:
    given = os.environ | {shared_counts.FOLDER: str(tmp_path)}
    code = COUNT_ALONE + (
        "from prometheus_client import generate_latest\n"
        "print(generate_latest(http_figures.all_counts()).decode())\n"
    )
    told = ""
    for end in ("import os; os.kill(os.getpid(), 9)", "pass"):
        done = subprocess.run(
            [sys.executable, "-uc", code + end],
            env=given,
            capture_output=True,
            text=True,
            timeout=60,
        )
        told = done.stdout
    assert 'comfyfleet_http_requests_total{method="GET",route="/x",status="200"} 2.0' in told
    assert "comfyfleet_live_streams_open 1.0" in told
