"""The asset cache: whole files only, the right ones, and no more of them than there is room."""

import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_worker.assets import AssetCache, AssetDamaged
from tests.gpu_worker.cached import MEGABYTE, PHOTO, PHOTO_HASH, content, fetch, kept
from tests.gpu_worker.file_server import FileServer, file_server, whole, without_length


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


# Fetching


def test_a_file_is_downloaded_once(files: FileServer, cache: AssetCache, folder: Path) -> None:
    url = files.put("/photo", whole(PHOTO))
    assert [fetch(cache, url, PHOTO_HASH) for _ in range(3)] == [PHOTO] * 3
    assert files.asked == ["/photo"]
    assert kept(folder) == {PHOTO_HASH}


def test_another_process_finds_it_too(files: FileServer, cache: AssetCache, folder: Path) -> None:
    url = files.put("/photo", whole(PHOTO))
    fetch(cache, url, PHOTO_HASH.upper())
    later = AssetCache(folder, 100 * MEGABYTE)
    assert fetch(later, url, PHOTO_HASH) == PHOTO
    later.close()
    assert files.asked == ["/photo"]


def test_an_empty_file_is_a_file(files: FileServer, cache: AssetCache) -> None:
    url = files.put("/empty", whole(b""))
    assert fetch(cache, url, hashlib.sha256(b"").hexdigest()) == b""
    assert fetch(cache, url, hashlib.sha256(b"").hexdigest()) == b""
    assert files.asked == ["/empty"]


@pytest.mark.parametrize("no_hash", [None, ""])
def test_without_a_hash_nothing_is_kept(
    files: FileServer, cache: AssetCache, folder: Path, no_hash: str | None
) -> None:
    url = files.put("/photo", whole(PHOTO))
    with cache.fetch(url, no_hash) as path:
        assert path.read_bytes() == PHOTO
    assert fetch(cache, url, no_hash) == PHOTO
    assert files.asked == ["/photo"] * 2
    assert kept(folder) == set()


def test_a_body_of_unknown_length_is_taken_to_its_end(files: FileServer, cache: AssetCache) -> None:
    url = files.put("/photo", without_length(PHOTO))
    assert fetch(cache, url, PHOTO_HASH) == PHOTO


@pytest.mark.parametrize(
    "hostile",
    ["../../etc/passwd", "a" * 63, "a" * 65, "g" * 64, PHOTO_HASH + "\n", "/" * 64, "." * 64, "*"],
)
def test_a_hostile_hash_never_becomes_a_path(
    files: FileServer, cache: AssetCache, folder: Path, hostile: str
) -> None:
    url = files.put("/photo", whole(PHOTO))
    with pytest.raises(AssetDamaged, match="64 hexadecimal digits"):
        fetch(cache, url, hostile)
    assert files.asked == []
    assert kept(folder) == set()


def test_a_folder_cleared_by_a_person_is_made_again(
    files: FileServer, cache: AssetCache, folder: Path
) -> None:
    url = files.put("/photo", whole(PHOTO))
    fetch(cache, url, PHOTO_HASH)
    shutil.rmtree(folder)
    assert fetch(cache, url, PHOTO_HASH) == PHOTO


# What is wrong with it


def test_a_wrong_hash_is_asked_for_once_more(files: FileServer, cache: AssetCache) -> None:
    url = files.put("/photo", whole(b"something else"), whole(PHOTO))
    assert fetch(cache, url, PHOTO_HASH) == PHOTO


def test_a_wrong_hash_is_never_kept(files: FileServer, cache: AssetCache, folder: Path) -> None:
    url = files.put("/photo", whole(b"something else"))
    with pytest.raises(AssetDamaged, match=f"not {PHOTO_HASH}"):
        fetch(cache, url, PHOTO_HASH)
    assert files.asked == ["/photo"] * 2
    assert kept(folder) == set()


@pytest.mark.parametrize("damage", [PHOTO[:-1], b"", PHOTO + b"x"])
def test_a_damaged_file_is_noticed_and_fetched_again(
    files: FileServer, cache: AssetCache, folder: Path, damage: bytes
) -> None:
    url = files.put("/photo", whole(PHOTO))
    fetch(cache, url, PHOTO_HASH)
    (folder / PHOTO_HASH[:2] / f"{PHOTO_HASH}-{len(PHOTO)}").write_bytes(damage)
    assert fetch(cache, url, PHOTO_HASH) == PHOTO
    assert files.asked == ["/photo"] * 2
    assert fetch(cache, url, PHOTO_HASH) == PHOTO
    assert files.asked == ["/photo"] * 2


# Room


def test_what_was_used_longest_ago_is_evicted(files: FileServer, folder: Path) -> None:
    cache = AssetCache(folder, 3200)
    made = [content(number) for number in range(4)]
    urls = [files.put(f"/{number}", whole(body)) for number, (body, _) in enumerate(made)]
    for number in (0, 1, 2, 0, 3):  # 1 is the one not used for longest
        assert fetch(cache, urls[number], made[number][1]) == made[number][0]
        time.sleep(0.005)
    assert kept(folder) == {made[number][1] for number in (0, 2, 3)}


def test_the_limit_holds_however_small_the_files_are(files: FileServer, folder: Path) -> None:
    cache, sizes = AssetCache(folder, 10_000), []
    for number in range(150):
        body, content_hash = content(number, size=100)
        fetch(cache, files.put(f"/{number}", whole(body)), content_hash)
        sizes.append(100 * len(kept(folder)))
    assert max(sizes) <= 10_000
    assert min(sizes[100:]) >= 9_000


def test_a_file_in_use_is_never_evicted(files: FileServer, folder: Path) -> None:
    cache, other = AssetCache(folder, 1500), AssetCache(folder, 1500)
    (first, first_hash), (second, second_hash) = content(1), content(2)
    with cache.fetch(files.put("/1", whole(first)), first_hash) as path:
        assert fetch(other, files.put("/2", whole(second)), second_hash) == second
        assert path.read_bytes() == first
    third, third_hash = content(3)
    assert fetch(other, files.put("/3", whole(third)), third_hash) == third
    assert kept(folder) == {third_hash}


def test_a_file_larger_than_the_cache_is_handed_out_all_the_same(
    files: FileServer, folder: Path
) -> None:
    cache = AssetCache(folder, 1000)
    small, small_hash = content(1, size=900)
    fetch(cache, files.put("/small", whole(small)), small_hash)
    url = files.put("/photo", whole(PHOTO))
    with cache.fetch(url, PHOTO_HASH) as path, cache.fetch(url, PHOTO_HASH) as again:
        assert path.read_bytes() == again.read_bytes() == PHOTO
    assert kept(folder) == {small_hash}


def test_a_smaller_limit_holds_from_the_next_start(files: FileServer, folder: Path) -> None:
    first = AssetCache(folder, 5000)
    for number in range(5):
        body, content_hash = content(number)
        fetch(first, files.put(f"/{number}", whole(body)), content_hash)
    AssetCache(folder, 2200)
    assert len(kept(folder)) == 2
