"""The addresses of the local store, as a browser or an attacker would use them."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from flask import Flask

from models.errors import NotFound
from tests.models.object_stores import Served, send, served
from tests.models.test_signed_requests import send_raw
from webapp import storage

KEY = "uploads/a/film.png"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served("local", tmp_path_factory.mktemp("store")) as running:
        running.store.write(KEY, b"0123456789", "image/png")
        yield running


@pytest.fixture
def url(bench: Served) -> str:
    return bench.store.presign_get(KEY, seconds=60)


def test_a_file_is_a_download_that_no_browser_runs(url: str) -> None:
    headers = requests.get(url, timeout=5).headers
    assert headers["Content-Type"] == "image/png"
    assert headers["Content-Disposition"].startswith('attachment; filename="film.png"')
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "private"
    assert headers["Access-Control-Expose-Headers"] == "ETag"


def test_head_answers_like_get_without_the_body(url: str) -> None:
    head, get = requests.head(url, timeout=5), requests.get(url, timeout=5)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("Content-Length", "Content-Type", "ETag", "Accept-Ranges"):
        assert head.headers[name] == get.headers[name]


def test_a_client_that_has_the_file_does_not_get_it_again(bench: Served, url: str) -> None:
    etag = requests.get(url, timeout=5).headers["ETag"]
    same = requests.get(url, headers={"If-None-Match": etag}, timeout=5)
    assert (same.status_code, same.content) == (304, b"")
    # A download that goes on after the file was replaced has to begin anew.
    resumed = {"Range": "bytes=5-", "If-Range": etag}
    assert requests.get(url, headers=resumed, timeout=5).content == b"56789"
    bench.store.write(KEY, b"abcdefghij", "image/png")
    assert requests.get(url, headers=resumed, timeout=5).content == b"abcdefghij"


def test_a_range_behind_the_end_says_where_the_end_is(url: str) -> None:
    answer = requests.get(url, headers={"Range": "bytes=10-"}, timeout=5)
    assert (answer.status_code, answer.headers["Content-Range"]) == (416, "bytes */10")


def test_no_answer_leaves_a_file_open(url: str) -> None:
    def ask() -> None:
        requests.head(url, timeout=5)
        for headers in ({}, {"Range": "bytes=1-2"}, {"Range": "bytes=99-"}, {"If-None-Match": "*"}):
            requests.get(url, headers=headers, timeout=5)

    ask()
    before = len(os.listdir("/dev/fd"))
    gc.disable()  # so that it does not close what we forgot
    try:
        for _ in range(10):
            ask()
        assert len(os.listdir("/dev/fd")) < before + 10
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "path",
    [
        "/storage/../../../etc/passwd",
        "/storage/%2e%2e/%2e%2e/etc/passwd",
        "/storage/uploads/../uploads/a/film.png",
        "/storage/uploads%2fa%2f..%2fa%2ffilm.png",
        "/storage/uploads/a/film.png%00.png",
        "/storage/.unfinished/x.png",
        "/storage/%ff%fe.png",
        "/storage/",
    ],
)
def test_no_path_leads_anywhere_without_its_own_signature(url: str, path: str) -> None:
    host = url.partition("/storage/")[0]
    query = url.partition("?")[2]
    for method in ("GET", "PUT"):
        head = f"{method} {path}?{query} HTTP/1.1\r\nContent-Length: 0"
        assert send_raw(host, head).split()[1] in (b"403", b"404")


def test_what_a_client_breaks_off_leaves_no_rest_on_disk(bench: Served) -> None:
    put = bench.store.presign_put(KEY, mime_type="image/png", size_bytes=900_000, seconds=60)
    head = "PUT {path} HTTP/1.1\r\nContent-Type: image/png\r\nContent-Length: 900000"
    send_raw(put.url, head, b"x" * 500_000)
    assert send(put, b"x" * 900_001).status_code == 422
    assert list((bench.folder / "objects" / ".unfinished").iterdir()) == []


def test_with_another_store_nothing_is_served(tmp_path: Path) -> None:
    app = Flask(__name__)
    app.register_blueprint(storage.blueprint)
    app.extensions["comfyfleet"] = SimpleNamespace(store=object())
    app.testing = True
    for method in ("GET", "PUT"):
        with pytest.raises(NotFound):
            app.test_client().open("/storage/uploads/a/film.png", method=method)
