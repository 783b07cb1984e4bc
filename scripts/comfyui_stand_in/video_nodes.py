"""Nodes for video and sound. PyAV is imported by the first node that needs it.

A VIDEO is its pictures with their rate and its sound; an AUDIO is the decoded frames of one
track. A film is read, edited and written frame by frame while it is saved.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

from PIL import Image

from scripts.comfyui_stand_in.node_classes import FileInput, Images, Report, Result, Work, node

if TYPE_CHECKING:
    import av
    from av.audio.stream import AudioStream
    from av.container import OutputContainer

_VIDEO = {"category": "image/video", "module": "comfy_extras.nodes_video", "is_new_style": True}
_AUDIO = {"category": "audio", "module": "comfy_extras.nodes_audio", "is_new_style": True}
_FRAMES_A_REPORT = 10
_AUDIO_PREFIX = ["STRING", {"default": "audio/ComfyUI", "multiline": False}]


@dataclass(frozen=True, kw_only=True)
class Audio:
    frames: "list[av.AudioFrame]"
    rate: int


@dataclass(frozen=True, kw_only=True)
class Video:
    images: Images
    rate: Fraction
    audio: Audio | None


@node(
    "LoadVideo",
    required={"file": ["COMBO", {"multiselect": False, "options": [], "video_upload": True}]},
    returns=("VIDEO",),
    file=FileInput(name="file", kinds=("video",)),
    title="Load Video",
    **_VIDEO,
)
def load_video(work: Work, *, file: str) -> Result:
    import av

    path = work.folders.readable(file)
    with av.open(path) as container:
        if not container.streams.video:
            raise ValueError(f"No video stream found in file '{path}'")
        stream = container.streams.video[0]
        rate, count = Fraction(stream.average_rate or 1), stream.frames
    count = count or sum(1 for _ in _decoded_frames(path))  # not every container tells
    film = Images(read=lambda: _decoded_frames(path), count=count, is_film=True)
    return Result(values=(Video(images=film, rate=rate, audio=_decoded_audio(path)),))


def _decoded_frames(path: Path) -> Iterator[Image.Image]:
    import av

    with av.open(path) as container:
        for frame in container.decode(container.streams.video[0]):
            yield frame.to_image()  # type: ignore[no-untyped-call]


def _decoded_audio(path: Path) -> Audio | None:
    import av

    with av.open(path) as container:
        if not container.streams.audio:
            return None
        stream = container.streams.audio[0]
        return Audio(frames=list(container.decode(stream)), rate=stream.rate)


@node(
    "GetVideoComponents",
    required={"video": ["VIDEO", {"tooltip": "The video to extract components from."}]},
    returns=("IMAGE", "AUDIO", "FLOAT"),
    title="Get Video Components",
    **_VIDEO,
)
def get_video_components(work: Work, *, video: Video) -> Result:  # noqa: ARG001
    return Result(values=(video.images, video.audio, float(video.rate)))


@node(
    "CreateVideo",
    required={
        "images": ["IMAGE", {"tooltip": "The images to create a video from."}],
        "fps": ["FLOAT", {"default": 30.0, "min": 1.0, "max": 120.0, "step": 1.0}],
    },
    optional={"audio": ["AUDIO", {"tooltip": "The audio to add to the video."}]},
    returns=("VIDEO",),
    title="Create Video",
    **_VIDEO,
)
def create_video(work: Work, *, images: Images, fps: float, audio: Audio | None = None) -> Result:  # noqa: ARG001
    return Result(
        values=(Video(images=images, rate=Fraction(round(fps * 1000), 1000), audio=audio),)
    )


@node(
    "SaveVideo",
    required={
        "video": ["VIDEO", {"tooltip": "The video to save."}],
        "filename_prefix": ["STRING", {"default": "video/ComfyUI", "multiline": False}],
        "format": ["COMBO", {"default": "auto", "multiselect": False, "options": ["auto", "mp4"]}],
        "codec": ["COMBO", {"default": "auto", "multiselect": False, "options": ["auto", "h264"]}],
    },
    is_output=True,
    title="Save Video",
    **_VIDEO,
)
def save_video(
    work: Work,
    *,
    video: Video,
    filename_prefix: str,
    format: str,  # noqa: A002, ARG001 - the name of the input; both choices mean MP4
    codec: str,  # noqa: ARG001
) -> Result:
    import av

    new = work.folders.new_file(filename_prefix, size=video.images.size)
    name = new.name("mp4")
    with av.open(new.folder / name, "w", options={"movflags": "use_metadata_tags"}) as container:
        container.metadata["prompt"] = json.dumps(work.prompt)
        _encode_video(container, video, work.report)
    return Result(ui={"images": [_item(name, new.subfolder)], "animated": [True]})


def _encode_video(container: "OutputContainer", video: Video, report: Report) -> None:
    """Both tracks are declared before the first packet, as an MP4 demands."""
    import av

    picture = container.add_stream("libx264", rate=video.rate)
    picture.width, picture.height = video.images.size
    picture.pix_fmt = "yuv420p"
    sound = container.add_stream("aac", rate=video.audio.rate) if video.audio else None
    for index, image in enumerate(video.images.read()):
        if index % _FRAMES_A_REPORT == 0:
            report(min(index, video.images.count), video.images.count)
        container.mux(picture.encode(av.VideoFrame.from_image(image)))  # type: ignore[no-untyped-call]
    container.mux(picture.encode(None))
    if sound and video.audio:
        for frame in video.audio.frames:
            frame.pts = None  # the encoder counts, whatever the source began with
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))


@node(
    "LoadAudio",
    required={"audio": ["COMBO", {"multiselect": False, "options": [], "audio_upload": True}]},
    returns=("AUDIO",),
    file=FileInput(name="audio", kinds=("audio", "video")),
    title="Load Audio",
    **_AUDIO,
)
def load_audio(work: Work, *, audio: str) -> Result:
    path = work.folders.readable(audio)
    decoded = _decoded_audio(path)
    if decoded is None:
        raise ValueError("No audio stream found in the file.")
    return Result(values=(decoded,))


@node(
    "SaveAudio",
    required={"audio": ["AUDIO", {}], "filename_prefix": _AUDIO_PREFIX},
    is_output=True,
    title="Save Audio (FLAC)",
    **_AUDIO,
)
def save_audio(work: Work, *, audio: Audio, filename_prefix: str) -> Result:
    return _saved_audio(work, audio, filename_prefix, ending="flac", codec="flac")


@node(
    "SaveAudioMP3",
    required={
        "audio": ["AUDIO", {}],
        "filename_prefix": _AUDIO_PREFIX,
        "quality": [
            "COMBO",
            {"default": "V0", "multiselect": False, "options": ["V0", "128k", "320k"]},
        ],
    },
    is_output=True,
    title="Save Audio (MP3)",
    **_AUDIO,
)
def save_audio_mp3(work: Work, *, audio: Audio, filename_prefix: str, quality: str) -> Result:  # noqa: ARG001
    return _saved_audio(work, audio, filename_prefix, ending="mp3", codec="libmp3lame")


@node(
    "PreviewAudio",
    required={"audio": ["AUDIO", {}]},
    is_output=True,
    title="Preview Audio",
    **_AUDIO,
)
def preview_audio(work: Work, *, audio: Audio) -> Result:
    return _saved_audio(work, audio, "ComfyUI_temp", ending="flac", codec="flac", kind="temp")


def _saved_audio(
    work: Work, audio: Audio, prefix: str, *, ending: str, codec: str, kind: str = "output"
) -> Result:
    import av

    new = work.folders.new_file(prefix, kind=kind, size=(0, 0))
    name = new.name(ending)
    with av.open(new.folder / name, "w") as container:
        stream = cast("AudioStream", container.add_stream(codec, rate=audio.rate))
        for frame in audio.frames:
            frame.pts = None
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return Result(ui={"audio": [_item(name, new.subfolder, kind)]})


def _item(name: str, subfolder: str, kind: str = "output") -> dict[str, str]:
    return {"filename": name, "subfolder": subfolder, "type": kind}
