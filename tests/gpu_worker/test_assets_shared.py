"""One cache folder, several processes and threads: each gets whole files, also after a kill -9."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from gpu_worker.assets import AssetCache
from tests.gpu_worker.cached import MEGABYTE, PHOTO, PHOTO_HASH, content, fetch, kept, wait_for
from tests.gpu_worker.file_server import FileServer, Request, file_server, whole


@pytest.fixture
def files() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(folder: Path) -> Iterator[AssetCache]:
    cache = AssetCache(folder, 100 * MEGABYTE)
    yield cache
    cache.close()


def start_fetching(
    folder: Path, url: str, *, largest_file_bytes: int = 10**9
) -> "subprocess.Popen[str]":
    given = [str(folder), url, PHOTO_HASH, str(largest_file_bytes)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.gpu_worker.fetching", *given],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def lines(process: "subprocess.Popen[str]", count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def finish(process: "subprocess.Popen[str]") -> int:
    process.communicate(timeout=20)
    return process.returncode


def test_two_processes_that_want_the_same_file_download_it_once(
    files: FileServer, folder: Path
) -> None:
    both_ask = threading.Event()

    def when_both_ask(request: Request) -> None:
        both_ask.wait(20)
        whole(PHOTO)(request)

    url = files.put("/photo", when_both_ask)
    processes = [start_fetching(folder, url) for _ in range(2)]
    for process in processes:
        assert lines(process, 1) == ["fetching"]
    both_ask.set()
    assert [lines(process, 1) for process in processes] == [[PHOTO_HASH]] * 2
    assert [finish(process) for process in processes] == [0, 0]
    assert files.asked == ["/photo"]
    assert kept(folder) == {PHOTO_HASH}


def test_a_download_killed_in_the_middle_leaves_nothing_behind(
    files: FileServer, folder: Path
) -> None:
    half = files.silent(announced=len(PHOTO), first=PHOTO[: len(PHOTO) // 2])
    url = files.put("/photo", half, whole(PHOTO))
    process = start_fetching(folder, url)
    part = folder / f"{PHOTO_HASH}.part"
    wait_for(lambda: part.exists() and part.stat().st_size > 0)
    beside = AssetCache(folder, 10**9)
    assert part.exists(), "a start beside it must not sweep what is being downloaded"
    beside.close()

    process.kill()
    assert finish(process) == -9
    assert part.exists()
    cache = AssetCache(folder, 10**9)
    assert not part.exists()
    assert fetch(cache, url, PHOTO_HASH) == PHOTO
    assert kept(folder) == {PHOTO_HASH}


def test_who_waits_for_a_download_that_is_killed_takes_over(
    files: FileServer, cache: AssetCache, folder: Path
) -> None:
    url = files.put("/photo", files.silent(announced=len(PHOTO), first=b"."), whole(PHOTO))
    process = start_fetching(folder, url)
    wait_for(lambda: files.asked == ["/photo"])
    got = list[bytes]()
    waiting = threading.Thread(target=lambda: got.append(fetch(cache, url, PHOTO_HASH)))
    waiting.start()
    process.kill()
    finish(process)
    waiting.join(20)
    assert got == [PHOTO]


def test_a_file_in_use_by_another_process_is_not_evicted(files: FileServer, folder: Path) -> None:
    process = start_fetching(folder, files.put("/photo", whole(PHOTO)))
    assert lines(process, 2) == ["fetching", PHOTO_HASH]
    small = AssetCache(folder, 1000)
    assert kept(folder) == {PHOTO_HASH}
    assert finish(process) == 0
    body, content_hash = content(1)
    fetch(small, files.put("/1", whole(body)), content_hash)
    assert kept(folder) == {content_hash}


@pytest.fixture
def in_a_hurry() -> Iterator[None]:
    """Threads take turns after every few instructions, so that races have their chance."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_many_at_once_in_little_room_all_get_what_they_asked_for(
    files: FileServer, folder: Path, in_a_hurry: None
) -> None:
    made = [content(number) for number in range(6)]
    urls = [files.put(f"/{number}", whole(body)) for number, (body, _) in enumerate(made)]
    wrong: list[object] = []

    def fetch_many(seed: int) -> None:
        chance = Random(seed)
        for _ in range(8):
            cache = AssetCache(folder, 2200)  # each start sweeps and evicts beside the others
            for number in chance.choices(range(len(made)), k=12):
                body, content_hash = made[number]
                try:
                    if fetch(cache, urls[number], content_hash) != body:
                        wrong.append(number)
                except Exception as error:
                    wrong.append(error)
            cache.close()

    threads = [threading.Thread(target=fetch_many, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    AssetCache(folder, 2200)
    assert 0 < len(kept(folder)) <= 2


def test_a_full_disk_is_told_and_leaves_nothing(files: FileServer, folder: Path) -> None:
    process = start_fetching(folder, files.put("/photo", whole(PHOTO)), largest_file_bytes=100_000)
    assert lines(process, 2) == ["fetching", "An asset can't be stored: File too large."]
    assert finish(process) == 1
    assert kept(folder) == set()
