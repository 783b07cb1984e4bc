"""Both stores keep the same promises. Where a server does less, the test says so."""

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from models import object_paths
from models.errors import DependencyUnavailable, MediaNotAllowed, NotFound, NotPossibleNow
from models.object_store import open_store
from models.object_store_local import LocalStore
from models.object_store_s3 import S3Store
from models.settings import BadSetting, Settings
from tests.models.object_stores import SECRET, Served, served


@pytest.fixture(params=["local", "s3"], scope="module")
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with served(request.param, tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path, public_url="http://x", secret_key=SECRET, max_bytes=1000)


def in_a_minute() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=1)


def test_what_is_written_can_be_read_described_and_downloaded(
    bench: Served, tmp_path: Path
) -> None:
    key = object_paths.graph_key(uuid4().hex)
    bench.store.write(key, b'{"1": {}}', "application/json")

    stat = bench.store.head(key)
    assert stat is not None
    assert (stat.size_bytes, stat.mime_type) == (9, "application/json")
    assert bench.store.read(key) == b'{"1": {}}'
    with (tmp_path / "graph").open("wb") as file:
        assert bench.store.download(key, file) == stat
        assert (tmp_path / "graph").read_bytes() == b'{"1": {}}'


def test_what_is_missing_is_missing_everywhere(bench: Served, tmp_path: Path) -> None:
    key = bench.upload_key()
    assert bench.store.head(key) is None
    with pytest.raises(NotFound):
        bench.store.read(key)
    with pytest.raises(NotFound):
        bench.store.copy(key, bench.upload_key())
    with pytest.raises(NotFound):
        bench.store.copy(key, bench.upload_key(), etag="some-version")
    with pytest.raises(NotFound), (tmp_path / "file").open("wb") as file:
        bench.store.download(key, file)


def test_a_copy_stays_when_the_original_is_deleted_twice(bench: Served) -> None:
    upload, accepted = (
        bench.upload_key(),
        object_paths.input_key(bench.tenant, uuid4(), "image/png"),
    )
    bench.store.write(upload, b"pixels", "image/png")
    bench.store.copy(upload, accepted)
    bench.store.delete(upload)
    bench.store.delete(upload)
    assert bench.store.head(upload) is None
    assert bench.store.read(accepted) == b"pixels"


def test_a_file_replaced_after_it_was_checked_is_not_copied(bench: Served, tmp_path: Path) -> None:
    upload, accepted = bench.upload_key(), bench.upload_key()
    bench.store.write(upload, b"harmless", "image/png")
    with (tmp_path / "file").open("wb") as file:
        checked = bench.store.download(upload, file)
    bench.store.copy(upload, accepted, etag=checked.etag)

    bench.store.write(upload, b"harmful!", "image/png")
    with pytest.raises(NotPossibleNow, match="replaced"):
        bench.store.copy(upload, accepted, etag=checked.etag)
    assert bench.store.read(accepted) == b"harmless"


def test_writers_of_one_key_leave_one_whole_object(bench: Served) -> None:
    key = bench.upload_key()
    bodies = [bytes([number]) * 200_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda body: bench.store.write(key, body, "image/png"), bodies))
    assert bench.store.read(key) in bodies


def test_stale_keys_are_those_below_the_prefix_written_before(bench: Served) -> None:
    old, other = bench.upload_key(), object_paths.upload_key(uuid4(), uuid4(), "image/png")
    bench.store.write(old, b"1", "image/png")
    bench.store.write(other, b"1", "image/png")
    mine = f"uploads/{bench.tenant}/"

    keys = list(bench.store.stale(mine, in_a_minute()))
    assert old in keys
    assert other not in keys
    assert other in list(bench.store.stale("uploads/", in_a_minute()))
    assert other in list(bench.store.stale("", in_a_minute()))
    assert list(bench.store.stale(mine, datetime.now(UTC) - timedelta(minutes=1))) == []
    assert list(bench.store.stale("tenants/nobody/", in_a_minute())) == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a.png",
        "/etc/passwd",
        "uploads/../../secret.png",
        "uploads/./a.png",
        "uploads//a.png",
        "uploads/.unfinished/a.png",
        "uploads/a\0.png",
        "uploads/a.png\n",
        "uploads/a.png/b.png",
        "uploads/a.exe",
        "uploads/a",
        "uploads\\a.png",
        "uploads/ä.png",
        "uploads/" + "a" * 300 + ".png",
    ],
)
def test_a_key_that_is_not_ours_reaches_no_store(bench: Served, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        bench.store.read(key)
    with pytest.raises(ValueError, match="not a key"):
        bench.store.presign_get(key, seconds=1)
    with pytest.raises(ValueError, match="not a key"):
        bench.store.delete(key)


def test_a_key_holds_the_type_it_names(bench: Served) -> None:
    with pytest.raises(ValueError, match="can't hold"):
        bench.store.write(bench.upload_key("image/png"), b"<html>", "text/html")
    with pytest.raises(MediaNotAllowed):
        object_paths.upload_key(bench.tenant, uuid4(), "image/svg+xml")
    with pytest.raises(ValueError, match="not a prefix"):
        list(bench.store.stale("../", in_a_minute()))


def test_a_store_that_does_not_answer_is_an_outage(tmp_path: Path) -> None:
    gone = S3Store("bucket", endpoint_url="http://127.0.0.1:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        with pytest.raises(DependencyUnavailable) as refusal:
            gone.head("uploads/a/b.png")
        with pytest.raises(DependencyUnavailable):
            gone.download("uploads/a/b.png", io.BytesIO())
    assert "127.0.0.1" not in refusal.value.detail


def test_a_disk_that_does_not_take_files_is_an_outage(local: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "uploads").write_text("a file where a folder has to be")
    with pytest.raises(DependencyUnavailable) as refusal:
        local.write("uploads/a/b.png", b"", "image/png")
    assert str(tmp_path) not in refusal.value.detail
    assert list((tmp_path / ".unfinished").iterdir()) == []


def test_a_link_does_not_lead_out_of_the_folder(local: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (tmp_path / "uploads").symlink_to(outside)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "secret.txt").symlink_to(outside / "secret.txt")
    for key in ("uploads/secret.txt", "files/secret.txt"):
        with pytest.raises(NotFound):
            local.read(key)
        with pytest.raises(NotFound):
            local.write(key, b"mine now", "text/plain")
    assert (outside / "secret.txt").read_text() == "secret"


def test_a_crash_in_the_middle_of_a_write_leaves_nothing_readable(
    local: LocalStore, tmp_path: Path
) -> None:
    program = (
        "import os, sys, pathlib; from models import atomic_files\n"
        "with atomic_files.draft(pathlib.Path(sys.argv[1]) / '.unfinished') as file:\n"
        "    file.write(b'half'); file.flush(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == 9
    assert list(local.stale("", in_a_minute())) == []
    assert local.sweep_unfinished(datetime.now(UTC) - timedelta(minutes=1)) == 0
    assert local.sweep_unfinished(in_a_minute()) == 1
    assert local.sweep_unfinished(in_a_minute()) == 0


def test_a_client_is_made_once_for_all_threads_and_again_after_a_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, clients = S3Store("bucket", endpoint_url="http://127.0.0.1:1"), []
    threads = [threading.Thread(target=lambda: clients.append(store._client)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, clients))) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert store._client is not clients[0]


def test_addresses_of_aws_name_the_bucket_and_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    store = open_store(Settings(storage_url="s3://films", s3_region="eu-central-1"))
    url = store.presign_get("uploads/a/b.png", seconds=60)
    assert url.startswith("https://films.s3.eu-central-1.amazonaws.com/uploads/a/b.png?")


@pytest.mark.parametrize("url", ["", "ftp://x", "s3://", "file://", "/objects"])
def test_a_storage_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(BadSetting, match="STORAGE_URL"):
        open_store(Settings(storage_url=url, secret_key=SECRET))


def test_a_short_secret_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="COMFYFLEET_SECRET_KEY needs at least 32"):
        open_store(Settings(storage_url=f"file://{tmp_path}", secret_key="short"))


def test_versions_written_in_the_same_moment_have_different_etags(local: LocalStore) -> None:
    etags = set()
    for _ in range(50):
        local.write("uploads/a/b.png", b"same", "image/png")
        stat = local.head("uploads/a/b.png")
        assert stat is not None
        etags.add(stat.etag)
    assert len(etags) == 50
