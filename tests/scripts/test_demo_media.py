"""The demo's eyes: a negative is recognised, and nothing else passes for one."""

from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image, ImageOps

from scripts import demo_media
from scripts.demo_media import NotInverted


def inverted_film(source: Path, target: Path, *, with_sound: bool = True, skip: int = 0) -> None:
    video_frame: Any = av.VideoFrame
    with av.open(str(source)) as film, av.open(str(target), "w", format="mp4") as output:
        video: Any = output.add_stream("libx264", rate=demo_media.FILM_RATE)
        video.width, video.height, video.pix_fmt = *demo_media.FILM_SIZE, "yuv420p"
        sound: Any = film.streams.audio[0]
        copied: Any = output.add_stream_from_template(sound) if with_sound else None
        for packet in film.demux():
            if copied is not None and packet.stream is sound and packet.dts is not None:
                packet.stream = copied
                output.mux(packet)
            elif packet.stream.type == "video":
                for frame in packet.decode():
                    seen: Any = frame
                    if skip > 0:
                        skip -= 1
                        continue
                    negative = ImageOps.invert(seen.to_image())
                    output.mux(video.encode(video_frame.from_image(negative)))
        output.mux(video.encode())


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    demo_media.draw_picture(tmp_path / "night.png")
    return tmp_path / "night.png"


@pytest.fixture
def film(tmp_path: Path) -> Path:
    demo_media.shoot_film(tmp_path / "moon.mp4")
    return tmp_path / "moon.mp4"


def test_the_negative_of_a_picture_is_recognised(picture: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.png"
    with Image.open(picture) as image:
        ImageOps.invert(image).save(result)
    assert demo_media.check_picture(picture, result).startswith("640 x 400 pixels")


def test_a_picture_that_came_back_as_it_was_is_refused(picture: Path) -> None:
    with pytest.raises(NotInverted, match="differs from the negative by"):
        demo_media.check_picture(picture, picture)


def test_a_picture_of_another_size_is_refused(picture: Path, tmp_path: Path) -> None:
    with Image.open(picture) as image:
        ImageOps.invert(image).resize((64, 40)).save(tmp_path / "small.png")
    with pytest.raises(NotInverted, match="large"):
        demo_media.check_picture(picture, tmp_path / "small.png")


def test_the_negative_of_a_film_is_recognised(film: Path, tmp_path: Path) -> None:
    inverted_film(film, tmp_path / "result.mp4")
    assert demo_media.check_film(film, tmp_path / "result.mp4").startswith("48 frames")


def test_a_film_without_its_sound_is_refused(film: Path, tmp_path: Path) -> None:
    inverted_film(film, tmp_path / "silent.mp4", with_sound=False)
    with pytest.raises(NotInverted, match="lost its sound"):
        demo_media.check_film(film, tmp_path / "silent.mp4")


def test_a_film_that_is_too_short_is_refused(film: Path, tmp_path: Path) -> None:
    inverted_film(film, tmp_path / "short.mp4", skip=5)
    with pytest.raises(NotInverted, match="43 frames; 48 were sent"):
        demo_media.check_film(film, tmp_path / "short.mp4")


def test_a_film_that_came_back_as_it_was_is_refused(film: Path) -> None:
    with pytest.raises(NotInverted, match="A frame of"):
        demo_media.check_film(film, film)
