"""Uploads in parts, on both stores, over real HTTP."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from models.errors import InvalidInput, NotFound, UploadMissing, UploadSizeMismatch
from models.object_store import Part, part_sizes
from tests.models.object_stores import Served, send, served

SIZES = [5 * 1024**2, 1000]  # the smallest first part that S3 takes
TOTAL = sum(SIZES)


@pytest.fixture(params=["local", "s3"], scope="module")
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with served(request.param, tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def key(bench: Served) -> str:
    return bench.upload_key("video/mp4")


@pytest.fixture
def upload_id(bench: Served, key: str) -> str:
    return bench.store.start_multipart(key, "video/mp4")


def send_part(bench: Served, key: str, upload_id: str, number: int, fill: bytes = b"x") -> Part:
    size = SIZES[number - 1]
    signed = bench.store.presign_part(key, upload_id, number, size_bytes=size, seconds=60)
    answer = send(signed, fill * size)
    assert answer.status_code == 200
    return number, answer.headers["ETag"]


def test_parts_in_any_order_become_one_object(bench: Served, key: str, upload_id: str) -> None:
    second = send_part(bench, key, upload_id, 2, b"b")
    assert bench.store.head(key) is None
    first = send_part(bench, key, upload_id, 1, b"a")
    bench.store.finish_multipart(key, upload_id, [first, second], size_bytes=TOTAL)

    stat = bench.store.head(key)
    assert stat is not None
    assert (stat.size_bytes, stat.mime_type) == (TOTAL, "video/mp4")
    assert bench.store.read(key) == b"a" * SIZES[0] + b"b" * SIZES[1]
    # The client that did not hear the answer asks again.
    bench.store.finish_multipart(key, upload_id, [first, second], size_bytes=TOTAL)
    with pytest.raises(NotFound):
        bench.store.finish_multipart(key, upload_id, [first, second], size_bytes=TOTAL + 1)


def test_a_part_of_another_size_is_refused(bench: Served, key: str, upload_id: str) -> None:
    signed = bench.store.presign_part(key, upload_id, 1, size_bytes=1000, seconds=60)
    expected = bench.either(s3=403, local=422)
    assert send(signed, bytes(1001)).status_code == expected
    assert send(signed, bytes(999)).status_code == expected
    assert send(signed, iter([bytes(1000)])).status_code == expected
    with pytest.raises(UploadMissing, match="Part 1"):
        bench.store.finish_multipart(key, upload_id, [(1, "any")], size_bytes=1000)


def test_an_upload_with_a_part_missing_can_still_be_completed(
    bench: Served, key: str, upload_id: str
) -> None:
    first = send_part(bench, key, upload_id, 1)
    with pytest.raises(UploadMissing, match="Part 2"):
        bench.store.finish_multipart(key, upload_id, [first, (2, '"abc"')], size_bytes=TOTAL)
    with pytest.raises(UploadSizeMismatch, match=f"{SIZES[0]} bytes"):
        bench.store.finish_multipart(key, upload_id, [first], size_bytes=TOTAL)
    with pytest.raises(UploadSizeMismatch):
        bench.store.finish_multipart(key, upload_id, [], size_bytes=TOTAL)
    assert bench.store.head(key) is None

    second = send_part(bench, key, upload_id, 2)
    bench.store.finish_multipart(key, upload_id, [first, second], size_bytes=TOTAL)
    assert bench.store.head(key) is not None


def test_parts_have_to_be_listed_once_and_in_order(bench: Served, key: str, upload_id: str) -> None:
    first, second = (send_part(bench, key, upload_id, number) for number in (1, 2))
    for parts in ([second, first], [first, first, second], [(0, first[1]), first], [second]):
        with pytest.raises(InvalidInput, match="parts"):
            bench.store.finish_multipart(key, upload_id, parts, size_bytes=TOTAL)


def test_a_part_sent_again_counts_in_its_last_form(bench: Served, key: str, upload_id: str) -> None:
    """rclone refuses a part it already has (501); S3 replaces it, like the local store."""
    old = send_part(bench, key, upload_id, 1, b"a")
    second = send_part(bench, key, upload_id, 2)
    signed = bench.store.presign_part(key, upload_id, 1, size_bytes=SIZES[0], seconds=60)
    again = send(signed, b"c" * SIZES[0])
    assert again.status_code == bench.either(s3=501, local=200)
    if bench.name == "local":
        with pytest.raises(UploadMissing, match="Part 1"):
            bench.store.finish_multipart(key, upload_id, [old, second], size_bytes=TOTAL)
    first = old if bench.name == "s3" else (1, again.headers["ETag"])
    bench.store.finish_multipart(key, upload_id, [first, second], size_bytes=TOTAL)
    assert bench.store.read(key)[:1] == (b"a" if bench.name == "s3" else b"c")


def test_an_aborted_upload_takes_no_more_parts(bench: Served, key: str, upload_id: str) -> None:
    first = send_part(bench, key, upload_id, 1)
    signed = bench.store.presign_part(key, upload_id, 2, size_bytes=3, seconds=60)
    bench.store.abort_multipart(key, upload_id)
    bench.store.abort_multipart(key, upload_id)
    assert send(signed, b"123").status_code == 404
    with pytest.raises(NotFound):
        bench.store.finish_multipart(key, upload_id, [first], size_bytes=SIZES[0])
    assert bench.store.head(key) is None


def test_an_upload_belongs_to_its_key(bench: Served, key: str, upload_id: str) -> None:
    other = bench.upload_key("video/mp4")
    signed = bench.store.presign_part(other, upload_id, 1, size_bytes=3, seconds=60)
    assert send(signed, b"123").status_code == 404
    with pytest.raises(NotFound):
        bench.store.finish_multipart(other, upload_id, [(1, "any")], size_bytes=3)
    with pytest.raises(NotFound):
        bench.store.finish_multipart(key, "../../etc", [(1, "any")], size_bytes=3)
    bench.store.abort_multipart(key, "../../etc")


def test_the_address_of_a_part_is_for_that_part(bench: Served, key: str, upload_id: str) -> None:
    signed = bench.store.presign_part(key, upload_id, 1, size_bytes=3, seconds=60)
    for before, after in [("part=1", "part=2"), ("partNumber=1", "partNumber=2")]:
        url = signed.url.replace(before, after)
        if url != signed.url:
            edited = type(signed)(signed.method, url, signed.headers, signed.expires_at)
            assert send(edited, b"123").status_code == 403


def test_forgotten_uploads_are_swept(bench: Served, key: str, upload_id: str) -> None:
    send_part(bench, key, upload_id, 2)
    assert bench.store.sweep_unfinished(datetime.now(UTC) - timedelta(minutes=5)) == 0
    assert bench.store.sweep_unfinished(datetime.now(UTC) + timedelta(minutes=5)) >= 1
    assert bench.store.sweep_unfinished(datetime.now(UTC) + timedelta(minutes=5)) == 0
    signed = bench.store.presign_part(key, upload_id, 1, size_bytes=3, seconds=60)
    assert send(signed, b"123").status_code == 404


@pytest.mark.parametrize("size", [1, 32 * 1024**2, 32 * 1024**2 + 1, 2 * 1024**3, 5 * 1024**4])
def test_parts_make_up_the_whole_within_the_limits_of_s3(size: int) -> None:
    sizes = part_sizes(size)
    assert sum(sizes) == size
    assert len(sizes) <= 10_000
    assert all(5 * 1024**2 <= part <= 5 * 1024**3 for part in sizes[:-1])
