"""A picture and a film to send, and a look at what came back: is it really the negative?"""

import math
import struct
from pathlib import Path
from typing import Any

import av
from PIL import Image, ImageChops, ImageDraw, ImageOps, ImageStat

PICTURE_SIZE = (640, 400)
FILM_SIZE, FILM_SECONDS, FILM_RATE = (320, 240), 2, 24
SOUND_RATE, SOUND_FRAME, TONE_HERTZ = 44_100, 1024, 440

#: Mean difference of a pixel, of 255, that compression may cause. The positive is beyond 60.
PICTURE_TOLERANCE, FILM_TOLERANCE = 4.0, 16.0


class NotInverted(RuntimeError):
    """An output is not what was ordered; the message says how it differs."""


def draw_picture(path: Path) -> None:
    """A night scene: its negative is a bright one, which nobody can mistake."""
    _scene(PICTURE_SIZE, moon=0.75).save(path)


def _scene(size: tuple[int, int], *, moon: float) -> Image.Image:
    """`moon` is its place from left (0) to right (1)."""
    width, height = size
    scene = Image.linear_gradient("L").resize(size)
    scene = ImageOps.colorize(scene, black=(8, 10, 34), white=(52, 30, 84)).convert("RGB")
    pen = ImageDraw.Draw(scene)
    x, y, radius = moon * width, height * 0.28, height * 0.11
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=(250, 240, 190))
    hills = [(step * width / 40, height * (0.72 + 0.07 * math.sin(step / 3))) for step in range(41)]
    pen.polygon([(0, height), *hills, (width, height)], fill=(12, 52, 40))
    return scene


def film_picture(number: int) -> Image.Image:
    frames = FILM_SECONDS * FILM_RATE
    return _scene(FILM_SIZE, moon=0.1 + 0.8 * number / frames)


def shoot_film(path: Path) -> None:
    """Two seconds of the moon going by, with a tone."""
    frame_of: Any = av.VideoFrame
    with av.open(str(path), "w", format="mp4") as output:
        video: Any = output.add_stream("libx264", rate=FILM_RATE, options={"crf": "20"})
        video.width, video.height, video.pix_fmt = *FILM_SIZE, "yuv420p"
        audio: Any = output.add_stream("aac", rate=SOUND_RATE, layout="mono")
        for number in range(FILM_SECONDS * FILM_RATE):
            output.mux(video.encode(frame_of.from_image(film_picture(number))))
        for number in range(FILM_SECONDS * SOUND_RATE // SOUND_FRAME):
            output.mux(audio.encode(_tone(number * SOUND_FRAME)))
        output.mux(video.encode())
        output.mux(audio.encode())


def _tone(first: int) -> Any:
    sound: Any = av.AudioFrame(format="fltp", layout="mono", samples=SOUND_FRAME)
    sound.sample_rate, sound.pts = SOUND_RATE, first
    wave = (
        0.2 * math.sin(2 * math.pi * TONE_HERTZ * sample / SOUND_RATE)
        for sample in range(first, first + SOUND_FRAME)
    )
    sound.planes[0].update(struct.pack(f"<{SOUND_FRAME}f", *wave))
    return sound


def check_picture(original: Path, result: Path) -> str:
    """What was seen; raises NotInverted if that is not the negative."""
    with Image.open(original) as before, Image.open(result) as after:
        size = after.size
        difference = _difference(before.convert("RGB"), after.convert("RGB"))
    if difference > PICTURE_TOLERANCE:
        raise NotInverted(f"{result} differs from the negative by {difference:.0f} of 255.")
    return f"{size[0]} x {size[1]} pixels, the negative of what was sent"


def check_film(original: Path, result: Path) -> str:
    before, _ = _watch(original)
    after, seconds_of_sound = _watch(result)
    if abs(len(before) - len(after)) > 1:
        raise NotInverted(f"{result} has {len(after)} frames; {len(before)} were sent.")
    if seconds_of_sound < FILM_SECONDS / 2:
        raise NotInverted(f"{result} has lost its sound.")
    difference = max(map(_difference, before, after))
    if difference > FILM_TOLERANCE:
        raise NotInverted(f"A frame of {result} differs from the negative by {difference:.0f}.")
    return f"{len(after)} frames, each the negative of what was sent, and the sound is kept"


def _watch(path: Path) -> tuple[list[Image.Image], float]:
    """All frames, and the seconds of sound."""
    frames: list[Image.Image] = []
    seconds = 0.0
    with av.open(str(path)) as film:
        for frame in film.decode():
            seen: Any = frame
            if isinstance(frame, av.VideoFrame):
                frames.append(seen.to_image())
            elif isinstance(frame, av.AudioFrame):
                seconds += frame.samples / frame.sample_rate
    return frames, seconds


def _difference(before: Image.Image, after: Image.Image) -> float:
    """Of the negative and what we got: the mean over all pixels and colours."""
    if before.size != after.size:
        raise NotInverted(f"It is {after.size} large; {before.size} was sent.")
    means = ImageStat.Stat(ImageChops.difference(ImageOps.invert(before), after)).mean
    return sum(means) / len(means)
