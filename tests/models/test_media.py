"""What is accepted, what is refused, and that no file takes this process with it."""

import resource
import subprocess
import sys
import threading
import time
import zlib
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from av.error import InvalidDataError

from models import media, media_decode
from models.errors import DependencyUnavailable, MediaNotAllowed, MediaUnreadable
from models.media import Media
from models.settings import Settings
from tests.models import media_files
from tests.models.media_files import archive, film, picture, png_bomb, png_chunk

PICTURES = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}
HTML = b"<html><script>alert(document.domain)</script></html>"


@cache
def clip(container: str = "mp4", codec: str = "libx264", **options: Any) -> bytes:
    return film(container, codec, **options)


def damaged(whole: bytes) -> bytes:
    """The last frames of a film made unreadable; its length stays."""
    return whole[:-4000] + bytes(byte ^ 0xFF for byte in whole[-4000:])


def probe(folder: Path, content: bytes, mime_type: str, **limits: Any) -> Media:
    path = folder / "upload-of-a-user"
    path.write_bytes(content)
    with path.open("rb") as file:
        return media.probe(file, claimed_mime_type=mime_type, settings=Settings(**limits))


def refusal(folder: Path, content: bytes, mime_type: str, **limits: Any) -> str:
    with pytest.raises((MediaUnreadable, MediaNotAllowed)) as refused:
        probe(folder, content, mime_type, **limits)
    assert "upload-of-a-user" not in refused.value.detail
    assert "/" not in refused.value.detail.replace("image/", "").replace("video/", "")
    return refused.value.detail


@pytest.mark.parametrize("mime_type", PICTURES)
def test_a_picture_is_measured(tmp_path: Path, mime_type: str) -> None:
    content = picture(PICTURES[mime_type])
    assert probe(tmp_path, content, mime_type) == Media("image", mime_type, 64, 48, None, 1)


@pytest.mark.parametrize("mime_type", ["image/png", "image/webp", "image/gif"])
def test_an_animation_is_measured(tmp_path: Path, mime_type: str) -> None:
    content = picture(PICTURES[mime_type], frames=5)
    assert probe(tmp_path, content, mime_type) == Media("image", mime_type, 64, 48, 0.2, 5)


@pytest.mark.parametrize(
    ("mime_type", "container", "codec", "options"),
    [
        ("video/mp4", "mp4", "libx264", {}),
        ("video/mp4", "mp4", "libx264", {"movflags": "faststart"}),
        ("video/mp4", "mp4", "libx264", {"movflags": "frag_keyframe+empty_moov"}),
        ("video/mp4", "mp4", "mpeg4", {}),
        ("video/quicktime", "mov", "libx264", {}),
        ("video/quicktime", "mp4", "libx264", {}),  # cameras mix up the two names
        ("video/webm", "webm", "libvpx", {}),
        ("video/webm", "webm", "libvpx", {"live": "1"}),  # as browsers record
        ("video/webm", "webm", "libsvtav1", {}),
    ],
)
def test_a_video_is_measured(
    tmp_path: Path, mime_type: str, container: str, codec: str, options: dict[str, str]
) -> None:
    found = probe(tmp_path, clip(container, codec, **options), mime_type)
    assert (found.kind, found.mime_type, found.width, found.height) == ("video", mime_type, 64, 48)
    assert found.frames == 25
    assert found.duration_seconds == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("mime_type", PICTURES)
@pytest.mark.parametrize("kept", [0.5, 0.97])
def test_a_picture_cut_off_is_refused(tmp_path: Path, mime_type: str, kept: float) -> None:
    whole = picture(PICTURES[mime_type], noise=True)
    refusal(tmp_path, whole[: int(len(whole) * kept)], mime_type)


@pytest.mark.parametrize(
    ("container", "options"),
    [("mp4", {}), ("mp4", {"movflags": "faststart"}), ("webm", {})],
)
@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_a_video_cut_off_is_refused(
    tmp_path: Path, container: str, options: dict[str, str], kept: float
) -> None:
    whole = clip(container, "libvpx" if container == "webm" else "libx264", **options)
    detail = refusal(tmp_path, whole[: int(len(whole) * kept)], f"video/{container}")
    assert "cut off" in detail


def test_a_video_with_damaged_frames_is_refused(tmp_path: Path) -> None:
    refusal(tmp_path, damaged(clip(movflags="faststart")), "video/mp4")


@pytest.mark.parametrize(
    ("mime_type", "content"),
    [
        ("image/gif", picture("GIF") + HTML),
        ("image/jpeg", picture("JPEG") + archive()),
        ("image/jpeg", picture("JPEG") + HTML),
        ("image/jpeg", picture("JPEG") * 2 + HTML),
        ("image/png", picture("PNG") + b"<?php system($_GET[0]); ?>"),
        ("image/webp", picture("WEBP") + HTML),
        ("video/mp4", clip() + archive()),
        ("video/mp4", clip() + HTML),
        ("video/mp4", clip() + b"\x00\x00\x01\x00free" + archive().ljust(248, b"\0")),
        ("video/webm", clip("webm", "libvpx") + HTML),
    ],
)
def test_a_file_that_is_also_something_else_is_refused(
    tmp_path: Path, mime_type: str, content: bytes
) -> None:
    assert "other data" in refusal(tmp_path, content, mime_type)


@pytest.mark.parametrize(
    "content",
    [
        HTML + clip(),
        clip()[:4] + HTML + clip(),
        b"GIF89a/*" + HTML,
        picture("JPEG"),
        b"",
        b"\0" * 99,
    ],
)
def test_what_does_not_begin_like_its_type_is_refused(tmp_path: Path, content: bytes) -> None:
    detail = refusal(tmp_path, content, "video/mp4")
    assert detail.startswith("This file is ") or "cut off" in detail


def test_what_cameras_add_to_their_pictures_is_accepted(tmp_path: Path) -> None:
    jpeg = picture("JPEG")
    for added in (jpeg, bytes(16), clip(), jpeg + clip(), media_files.samsung_record()):
        assert probe(tmp_path, jpeg + added, "image/jpeg").width == 64


def test_a_wrong_announcement_says_what_the_file_is(tmp_path: Path) -> None:
    detail = refusal(tmp_path, picture("PNG"), "image/jpeg")
    assert detail == "This file is PNG (image/png), but it was announced as image/jpeg."
    assert refusal(tmp_path, HTML, "image/png") == "This file is not PNG."


@pytest.mark.parametrize("mime_type", ["image/svg+xml", "text/html", "text/plain", "", "video/avi"])
def test_other_types_are_not_accepted(tmp_path: Path, mime_type: str) -> None:
    with pytest.raises(MediaNotAllowed, match="Accepted are: PNG"):
        probe(tmp_path, HTML, mime_type)


def test_other_content_in_a_known_container_is_not_accepted(tmp_path: Path) -> None:
    assert "no video" in refusal(tmp_path, media_files.song(), "video/mp4")
    assert "encoding" in refusal(tmp_path, clip("mov", "qtrle", pixels="rgb24"), "video/quicktime")
    assert "WebM" in refusal(tmp_path, clip("matroska"), "video/webm")
    avif = b"\0\0\0\x1cftypavif" + clip()[12:]
    assert refusal(tmp_path, avif, "video/mp4") == "This file is not MP4."
    playlist = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"
    assert refusal(tmp_path, playlist, "video/mp4") == "This file is not MP4."


def test_what_is_too_large_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    assert "50 megapixels" in refusal(tmp_path, png_bomb(30_000, 30_000, rows=10), "image/png")
    assert "megapixels" in refusal(tmp_path, picture("PNG"), "image/png", image_max_pixels=3000)
    assert "64 x 48" in refusal(tmp_path, clip(), "video/mp4", video_max_pixels=64 * 47)
    assert "1 seconds" in refusal(tmp_path, clip(seconds=3), "video/mp4", video_max_seconds=1)
    live = clip("webm", "libvpx", seconds=3, live="1")  # does not say how long it is
    assert "1 seconds" in refusal(tmp_path, live, "video/webm", video_max_seconds=1)
    assert "1000 frames" in refusal(tmp_path, media_files.gif_bomb(5000), "image/gif")


def test_a_text_that_unpacks_to_a_gigabyte_is_refused(tmp_path: Path) -> None:
    png = picture("PNG")
    text = b"Comment\0\0" + zlib.compress(bytes(200_000_000), 9)
    refusal(tmp_path, png[:33] + png_chunk(b"zTXt", text) + png[33:], "image/png")


def test_a_file_that_needs_too_much_memory_harms_only_itself(tmp_path: Path) -> None:
    bomb = png_bomb(20_000, 20_000, rows=20_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    detail = refusal(tmp_path, bomb, "image/png", image_max_pixels=10**9, probe_memory_mb=300)
    assert "memory" in detail
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_file_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    slow = media_files.gif_bomb(900, screen=(7000, 7000))
    began = time.monotonic()
    assert "too much time" in refusal(tmp_path, slow, "image/gif", probe_seconds=1)
    assert time.monotonic() - began < 5


def test_a_process_that_does_not_end_by_itself_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(media, "_ROOT", tmp_path)
    monkeypatch.setattr(media, "_START_SECONDS", 0.5)
    assert "too much time" in refusal(tmp_path, b"", "image/png", probe_seconds=0)


def test_a_long_video_is_read_to_its_end_but_decoded_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not decoded is not noticed: damage in the frames between key frames."""
    (tmp_path / "film").write_bytes(damaged(clip(movflags="faststart")))
    limits = media_decode.Limits("video/mp4", 1, 10**6, 10, 20, 0)
    with pytest.raises(InvalidDataError):
        media_decode.decode_video(str(tmp_path / "film"), limits)
    for share in (0.3, 0.6):  # key frames only; no more frames
        monkeypatch.setattr(media_decode, "_share_spent", lambda *_, share=share: share)
        assert media_decode.decode_video(str(tmp_path / "film"), limits).frames == 25


def test_a_rush_of_files_is_sent_away_and_not_taken_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "_at_once", threading.BoundedSemaphore(1))
    with media._at_once, pytest.raises(DependencyUnavailable, match="Too many"):
        probe(tmp_path, picture("PNG"), "image/png", probe_seconds=0)


def test_an_installation_without_decoders_is_not_the_users_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(DependencyUnavailable):
        probe(tmp_path, picture("PNG"), "image/png")


def test_the_content_hash_is_the_sha256(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(HTML)
    with (tmp_path / "file").open("rb") as file:
        assert [media.content_hash(file) for _ in range(2)] == [sha256(HTML).hexdigest()] * 2
