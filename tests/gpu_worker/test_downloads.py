"""Assets over a network in trouble: waited for, but not for ever, and left when told so."""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_worker.assets import AssetCache, AssetGone, AssetUnavailable, Patience
from gpu_worker.provider import Stopped
from scripts.server_process import free_port
from tests.gpu_worker.cached import MEGABYTE, PHOTO, PHOTO_HASH, fetch, kept, wait_for
from tests.gpu_worker.file_server import (
    FileServer,
    Request,
    cut_short,
    file_server,
    status,
    whole,
)

IMPATIENT = Patience(seconds=0.5, silence_seconds=0.3)


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


def impatient(folder: Path) -> AssetCache:
    return AssetCache(folder, 100 * MEGABYTE, patience=IMPATIENT)


@pytest.mark.parametrize(
    ("code", "is_gone"), [(400, False), (401, False), (403, False), (404, True), (410, True)]
)
def test_an_address_that_is_refused_is_not_asked_again(
    files: FileServer, cache: AssetCache, folder: Path, code: int, is_gone: bool
) -> None:
    """One that has run out comes new with another lease; a file that is gone does not."""
    url = files.put("/photo", status(code))
    with pytest.raises(AssetUnavailable, match=f"/photo answers {code}") as refused:
        fetch(cache, url, PHOTO_HASH)
    assert isinstance(refused.value, AssetGone) == is_gone
    assert files.asked == ["/photo"]
    assert kept(folder) == set()


def test_nobody_sends_us_elsewhere(files: FileServer, cache: AssetCache, folder: Path) -> None:
    def elsewhere(request: Request) -> None:
        request.send_response(302)
        request.send_header("Location", files.put("/other", whole(PHOTO)))
        request.send_header("Content-Length", "0")
        request.end_headers()

    with pytest.raises(AssetUnavailable, match="/photo answers 302") as refused:
        fetch(cache, files.put("/photo", elsewhere), PHOTO_HASH)
    assert not isinstance(refused.value, AssetGone)
    assert files.asked == ["/photo"]
    assert kept(folder) == set()


def test_a_proxy_of_the_machine_is_not_asked(
    files: FileServer, cache: AssetCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert fetch(cache, files.put("/photo", whole(PHOTO)), PHOTO_HASH) == PHOTO


@pytest.mark.parametrize("url", ["", "photo.png", "ftp://host/x", "file:///etc/passwd", "http://"])
def test_what_is_no_address_is_refused(cache: AssetCache, folder: Path, url: str) -> None:
    with pytest.raises(AssetGone):
        fetch(cache, url, PHOTO_HASH)
    assert kept(folder) == set()


def test_no_message_shows_the_signature_of_an_address(
    files: FileServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = impatient(folder)
    gone = files.put("/gone", status(404))
    wrong = files.put("/wrong", whole(b"something else"))
    away = f"http://127.0.0.1:{free_port()}/away?X-Signature=very-secret"
    told = []
    for url in (gone, wrong, away):
        with caplog.at_level(logging.INFO), pytest.raises(AssetUnavailable) as refused:
            fetch(cache, url, PHOTO_HASH)
        told.append(str(refused.value))
        assert refused.value.__cause__ is None
    assert "very-secret" not in caplog.text + " ".join(told)
    assert all("://127.0.0.1" in one for one in told)


# A network in trouble


def test_a_server_in_trouble_is_asked_again(files: FileServer, cache: AssetCache) -> None:
    url = files.put("/photo", status(503), status(429), whole(PHOTO))
    assert fetch(cache, url, PHOTO_HASH) == PHOTO


def test_a_server_that_is_away_is_waited_for(cache: AssetCache) -> None:
    port, got = free_port(), list[bytes]()
    url = f"http://127.0.0.1:{port}/photo"
    waiting = threading.Thread(target=lambda: got.append(fetch(cache, url, PHOTO_HASH)))
    waiting.start()
    time.sleep(0.5)
    with file_server(port) as server:
        server.put("/photo", whole(PHOTO))
        waiting.join(20)
    assert got == [PHOTO]


def test_patience_has_an_end(files: FileServer, folder: Path) -> None:
    url = files.put("/photo", status(500))
    with pytest.raises(AssetUnavailable, match="it answers 500"):
        fetch(impatient(folder), url, PHOTO_HASH)
    assert len(files.asked) > 1
    assert kept(folder) == set()


def test_a_body_that_is_cut_short_is_asked_for_again(files: FileServer, cache: AssetCache) -> None:
    url = files.put("/photo", cut_short(PHOTO[:100], announced=len(PHOTO)), whole(PHOTO))
    assert fetch(cache, url, PHOTO_HASH) == PHOTO


def test_a_cut_short_body_without_a_hash_is_no_file(files: FileServer, folder: Path) -> None:
    url = files.put("/photo", cut_short(PHOTO[:100], announced=len(PHOTO)))
    with pytest.raises(AssetUnavailable):
        fetch(impatient(folder), url, None)
    assert kept(folder) == set()


def test_a_huge_length_is_refused_without_waiting_for_it(
    files: FileServer, cache: AssetCache, folder: Path
) -> None:
    url = files.put("/photo", cut_short(b"tiny", announced=10**15))
    with pytest.raises(AssetGone, match="announces 1000000000000000 bytes"):
        fetch(cache, url, PHOTO_HASH)
    assert files.asked == ["/photo"]
    assert kept(folder) == set()


def test_a_server_that_goes_silent_is_asked_again(files: FileServer, folder: Path) -> None:
    url = files.put(
        "/photo", files.mute(), files.silent(announced=len(PHOTO), first=PHOTO[:10]), whole(PHOTO)
    )
    cache = AssetCache(folder, MEGABYTE * 10, patience=Patience(silence_seconds=0.3))
    assert fetch(cache, url, PHOTO_HASH) == PHOTO


def test_a_server_that_drips_does_not_hold_us_for_ever(files: FileServer, folder: Path) -> None:
    def drip(request: Request) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100000")
        request.end_headers()
        while not files.released.wait(0.05):
            request.wfile.write(b".")

    cache = AssetCache(folder, MEGABYTE, patience=Patience(longest_seconds=0.5))
    with pytest.raises(AssetUnavailable, match="takes too long"):
        fetch(cache, files.put("/drip", drip), PHOTO_HASH)
    assert kept(folder) == set()


@pytest.mark.parametrize("where", ["no header", "in the body", "between tries"])
def test_a_stop_is_obeyed_while_the_server_keeps_us_waiting(
    files: FileServer, cache: AssetCache, folder: Path, where: str
) -> None:
    reply = {
        "no header": files.mute(),
        "in the body": files.silent(announced=len(PHOTO), first=PHOTO[:100]),
        "between tries": status(503),
    }[where]
    url, stop, ended = files.put("/photo", reply), threading.Event(), threading.Event()

    def stopped_fetch() -> None:
        with pytest.raises(Stopped), cache.fetch(url, PHOTO_HASH, stop=stop):
            pass
        ended.set()

    waiting = threading.Thread(target=stopped_fetch)
    waiting.start()
    wait_for(lambda: files.asked != [])
    stop.set()
    assert ended.wait(5), "far less than the ten seconds of silence that are allowed"
    waiting.join()
    assert kept(folder) == set()
