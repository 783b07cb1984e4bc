"""Decodes an image or a video to see whether it really is one.

How much is decoded. Images: everything, every frame. Videos: every packet is read, and
the file has to be whole (models.media_structure), so a cut-off file is noticed however
long it is. Frames are all decoded for the first quarter of the time a file may take,
then only key frames for the second quarter, then none. So short clips are decoded from
end to end, and a long film costs half of its time at most.

Only for models.media_probe: decoders run in a process that may die.
"""

import time
import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

UNREADABLE, NOT_ALLOWED = "media_unreadable", "media_not_allowed"

_FRAMES_MAX = 1000
_PLUGINS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}
_CODECS = {"h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "prores", "mjpeg"}
# FFmpeg has hundreds of decoders, and the seldom used ones have the holes.
_DECODERS = "h264,hevc,vp8,libvpx,vp9,libvpx-vp9,av1,libdav1d,mpeg4,prores,mjpeg"


@dataclass(frozen=True)
class Limits:
    mime_type: str
    image_max_pixels: int
    video_max_pixels: int
    video_max_seconds: int
    seconds: int
    memory_mb: int


@dataclass(frozen=True)
class Found:
    kind: str
    width: int
    height: int
    duration_seconds: float | None
    frames: int


class Refused(Exception):
    """The file is not accepted; the text is for the user."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def decode_image(path: str, limits: Limits) -> Found:
    from PIL import Image

    most = limits.image_max_pixels
    Image.MAX_IMAGE_PIXELS = most
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    try:
        with Image.open(path, formats=[_PLUGINS[limits.mime_type]]) as image:
            width, height = image.size
            frames, milliseconds = _decode_frames(image, limits)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Refused(
            NOT_ALLOWED, f"An image may have at most {most / 1e6:.0f} megapixels."
        ) from None
    duration = milliseconds / 1000 if frames > 1 else None
    return Found("image", width, height, duration, frames)


def _decode_frames(image: Any, limits: Limits) -> tuple[int, float]:
    frames, milliseconds = 0, 0.0
    while True:
        image.load()
        frames += 1
        milliseconds += image.info.get("duration", 0)
        if limits.mime_type == "image/jpeg":  # the others in there are the camera's previews
            return frames, milliseconds
        if frames > _FRAMES_MAX:
            raise Refused(NOT_ALLOWED, f"An animation may have at most {_FRAMES_MAX} frames.")
        try:
            image.seek(frames)
        except EOFError:
            return frames, milliseconds


def decode_video(path: str, limits: Limits) -> Found:
    import av

    options = {
        "protocol_whitelist": "file",
        "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm",
        "codec_whitelist": _DECODERS,
        "max_pixels": str(limits.video_max_pixels),
        "threads": "1",  # each thread would take address space of its own
    }
    demuxer = "matroska" if limits.mime_type == "video/webm" else "mov"
    # "file:", because a path with a colon in it could name another protocol.
    with av.open(
        f"file:{path}", format=demuxer, options=options, metadata_errors="ignore"
    ) as container:
        stream = _accepted_stream(container, limits)
        stream.codec_context.options = {"max_pixels": options["max_pixels"]}
        stream.codec_context.thread_count = 1
        packets, seconds = _read_to_the_end(container, stream, limits)
        return Found("video", stream.width, stream.height, seconds, packets)


def _accepted_stream(container: "InputContainer", limits: Limits) -> "VideoStream":
    from av.stream import Disposition

    cover = Disposition.attached_pic  # the picture of a song
    streams = [video for video in container.streams.video if not video.disposition & cover]
    if not streams:
        raise Refused(NOT_ALLOWED, "There is no video in this file.")
    stream = streams[0]
    if stream.codec_context is None or stream.codec.canonical_name not in _CODECS:
        raise Refused(
            NOT_ALLOWED, "This video's encoding is not accepted. H.264 in an MP4 file always is."
        )
    if stream.width * stream.height > limits.video_max_pixels:
        raise Refused(
            NOT_ALLOWED,
            f"A video may have at most {limits.video_max_pixels} pixels in a frame; "
            f"this one has {stream.width} x {stream.height}.",
        )
    if (container.duration or 0) / 1e6 > limits.video_max_seconds:
        raise _too_long(limits)
    return stream


def _read_to_the_end(
    container: "InputContainer", stream: "VideoStream", limits: Limits
) -> tuple[int, float]:
    """The number of packets (frames, but for rare codecs), and how many seconds they last."""
    codec, began = stream.codec_context, time.monotonic()
    tick = stream.time_base or Fraction(1)
    packets = sent = decoded = 0
    times: list[int] = []
    keys_only = False
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise Refused(UNREADABLE, "The video is damaged or cut off. Please upload it again.")
        is_key, is_end = packet.is_keyframe, not packet.size and packet.dts is None
        if not packet.size and not is_end:
            continue  # "show the last frame again", as screen recorders write
        packets += not is_end
        times = _widen(times, packet.pts, packet.duration)
        if times and (times[1] - times[0]) * tick > limits.video_max_seconds:
            raise _too_long(limits)
        spent = _share_spent(began, limits)
        if spent > 1 / 4 and not keys_only:
            keys_only, codec.skip_frame = True, "NONKEY"
            codec.flush_buffers()
        if is_end or (is_key and not sent) or (spent < 1 / 2 and (is_key or not keys_only)):
            sent += 1
            decoded += len(packet.decode())  # the end gives what the decoder still holds
    if not decoded:
        raise Refused(UNREADABLE, "No frame of this video can be decoded.")
    return packets, float((times[1] - times[0]) * tick) if times else 0.0


def _share_spent(began: float, limits: Limits) -> float:
    return (time.monotonic() - began) / limits.seconds


def _widen(times: list[int], pts: int | None, duration: int | None) -> list[int]:
    if pts is None:
        return times
    end = pts + (duration or 0)
    return [min(times[0], pts), max(times[1], end)] if times else [pts, end]


def _too_long(limits: Limits) -> Refused:
    return Refused(NOT_ALLOWED, f"A video may last at most {limits.video_max_seconds} seconds.")
