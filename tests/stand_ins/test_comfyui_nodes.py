"""The nodes of the ComfyUI stand-in really do what their names say."""

import json
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image

from tests.stand_ins.comfyui_replay import Replay, heard, is_end, workflow

DEMO = Path(__file__).parents[2] / "models" / "demo"
DEMO_VALUES = {
    "image": "in.png",
    "video": "in.mp4",
    "width": 40,
    "height": 30,
    "colour": 0xFF8000,
    "method": "area",
    "crop": "center",
    "radius": 5,
    "sigma": 2.0,
    "seconds": 0.2,
    "output_prefix": "job-1/out",
}
RATE, FRAMES, SAMPLES = 12, 12, 44100


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def saved_image(replay: Replay, *chain: dict[str, Any]) -> Image.Image:
    """Run nodes one after another, the last one's image saved, and open it."""
    graph = {str(place): one for place, one in enumerate(chain, 1)}
    graph["save"] = node("SaveImage", images=[str(len(chain)), 0], filename_prefix="made")
    entry = replay.run(graph, "one-image")
    (item,) = entry["outputs"]["save"]["images"]
    return Image.open(replay.server.folder / "output" / item["filename"])


def test_an_inverted_image_has_the_opposite_of_every_pixel(replay: Replay) -> None:
    source = Image.effect_mandelbrot((40, 30), (-2, -1, 1, 1), 50).convert("RGB")
    source.save(replay.server.folder / "input" / "fractal.png")
    with saved_image(
        replay, node("LoadImage", image="fractal.png"), node("ImageInvert", image=["1", 0])
    ) as made:
        assert made.tobytes() == bytes(255 - byte for byte in source.tobytes())


@pytest.mark.parametrize(
    ("width", "height", "crop", "size"),
    [(30, 50, "disabled", (30, 50)), (32, 32, "center", (32, 32)), (48, 0, "disabled", (48, 32))],
)
def test_a_scaled_image_has_the_size_that_was_asked_for(
    replay: Replay, width: int, height: int, crop: str, size: tuple[int, int]
) -> None:
    scale = node(
        "ImageScale",
        image=["1", 0],
        upscale_method="lanczos",
        width=width,
        height=height,
        crop=crop,
    )
    with saved_image(replay, node("LoadImage", image="in.png"), scale) as made:
        assert made.size == size
        assert made.getpixel((5, 5)) == (10, 60, 200)


def test_blur_softens_an_edge_and_leaves_what_is_far_from_it(replay: Replay) -> None:
    source = Image.new("RGB", (80, 40))
    source.paste((255, 255, 255), (40, 0, 80, 40))
    source.save(replay.server.folder / "input" / "edge.png")
    blur = node("ImageBlur", image=["1", 0], blur_radius=4, sigma=1.0)
    with saved_image(replay, node("LoadImage", image="edge.png"), blur) as made:
        greys = [made.getpixel((x, 20))[0] for x in range(80)]
    assert greys == sorted(greys)
    assert 0 < greys[39] < greys[40] < 255
    assert (greys[10], greys[70]) == (0, 255)


def test_every_image_of_a_batch_is_saved_with_the_graph_inside(replay: Replay) -> None:
    graph = {
        "1": node("EmptyImage", width=8, height=8, batch_size=3, color=0xFF8000),
        "2": node("SaveImage", images=["1", 0], filename_prefix="b/batch"),
        "3": node("PreviewImage", images=["1", 0]),
    }
    entry = replay.run(graph, "batch")
    names = [item["filename"] for item in entry["outputs"]["2"]["images"]]
    assert names == [f"batch_{number:05}_.png" for number in (1, 2, 3)]
    with Image.open(replay.server.folder / "output" / "b" / names[2]) as image:
        assert image.getpixel((0, 0)) == (255, 128, 0)
        assert json.loads(image.info["prompt"]) == graph
    for item in entry["outputs"]["3"]["images"]:
        assert item["type"] == "temp"
        assert (replay.server.folder / "temp" / item["filename"]).is_file()


def write_video(path: Path) -> None:
    """Twelve frames of rising brightness, and a second of sound."""
    with av.open(path, "w") as container:
        picture = container.add_stream("libx264", rate=RATE)
        picture.width, picture.height, picture.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("aac", rate=SAMPLES)
        for number in range(FRAMES):
            grey = Image.new("RGB", (64, 48), (number * 20,) * 3)
            container.mux(picture.encode(av.VideoFrame.from_image(grey)))
        container.mux(picture.encode(None))
        frame = av.AudioFrame(format="fltp", layout="mono", samples=SAMPLES)
        frame.rate = SAMPLES
        frame.planes[0].update(bytes(SAMPLES * 4))
        container.mux(sound.encode(frame))
        container.mux(sound.encode(None))


def brightness(path: Path) -> list[int]:
    with av.open(path) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert container.streams.video[0].average_rate == RATE
        frames = list(container.decode(video=0))
    return [frame.to_image().getpixel((30, 20))[0] for frame in frames]


def samples(path: Path) -> int:
    with av.open(path) as container:
        return sum(frame.samples for frame in container.decode(audio=0))


def test_a_video_is_inverted_frame_by_frame_and_keeps_its_sound(replay: Replay) -> None:
    source = replay.server.folder / "input" / "in.mp4"
    write_video(source)
    entry = replay.run(workflow("video_invert_save"), "film")
    item = {"filename": "inv_00001_.mp4", "subfolder": "video", "type": "output"}
    assert entry["outputs"] == {"5": {"images": [item], "animated": [True]}}
    made = replay.server.folder / "output" / "video" / "inv_00001_.mp4"
    wanted = [255 - grey for grey in brightness(source)]
    assert len(wanted) == FRAMES
    for grey, wanted_grey in zip(brightness(made), wanted, strict=True):
        assert abs(grey - wanted_grey) <= 6  # the codec loses a little
    assert abs(samples(made) - samples(source)) <= 2048  # AAC pads by whole frames


def test_sound_is_saved_as_flac_and_mp3(replay: Replay) -> None:
    source = replay.server.folder / "input" / "in.mp4"
    write_video(source)
    graph = {
        "1": node("LoadAudio", audio="in.mp4"),
        "2": node("SaveAudio", audio=["1", 0], filename_prefix="audio/a"),
        "3": node("SaveAudioMP3", audio=["1", 0], filename_prefix="audio/b", quality="128k"),
        "4": node("PreviewAudio", audio=["1", 0]),
    }
    outputs = replay.run(graph, "sound")["outputs"]
    assert outputs["2"]["audio"][0]["filename"] == "a_00001_.flac"
    assert outputs["4"]["audio"][0]["type"] == "temp"
    folder = replay.server.folder / "output" / "audio"
    assert samples(folder / "a_00001_.flac") == samples(source)
    assert samples(folder / "b_00001_.mp3") > 0


def test_text_is_an_output_without_a_file(replay: Replay) -> None:
    graph = {
        "1": node("PrimitiveString", value="hello"),
        "2": node("PreviewAny", source=["1", 0]),
    }
    assert replay.run(graph, "text")["outputs"] == {"2": {"text": ["hello"]}}


def test_a_changed_input_file_is_loaded_again(replay: Replay) -> None:
    graph = workflow("load_invert_scale_save")
    replay.run(graph, "first", client_id="c")
    Image.new("RGB", (9, 9)).save(replay.server.folder / "input" / "in.png")
    entry = replay.run(graph, "second", client_id="c")
    assert entry["status"]["messages"][1][1]["nodes"] == []
    assert entry["outputs"]["4"]["images"][0]["filename"] == "inv_00002_.png"


def test_a_slow_image_reports_its_progress_and_stops_at_the_next_tick(replay: Replay) -> None:
    graph = {
        "1": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        "2": node("SlowImage", image=["1", 0], seconds=600),
        "3": node("PreviewImage", images=["2", 0]),
    }
    socket = replay.socket("/ws?clientId=slow")
    replay.post(graph, "slow", client_id="slow")
    heard(socket, lambda told: told["type"] == "progress" and told["data"]["value"] == 2)
    replay.order("/interrupt", {"prompt_id": "slow"})
    *_, ended, _, _ = heard(socket, is_end)
    assert (ended["type"], ended["data"]["node_id"]) == ("execution_interrupted", "2")


@pytest.mark.parametrize(
    "path", [path for path in DEMO.glob("*.json") if path.stem != "catalog"], ids=lambda p: p.stem
)
def test_a_graph_of_the_demo_runs(replay: Replay, path: Path) -> None:
    write_video(replay.server.folder / "input" / "in.mp4")
    text = path.read_text()
    for name, value in DEMO_VALUES.items():
        text = text.replace(f'"{{{{{name}}}}}"', json.dumps(value))
    entry = replay.run(json.loads(text), "demo")
    if path.stem == "always-fails":
        assert entry["status"]["messages"][-1][0] == "execution_error"
        return
    ((item,),) = (outputs["images"] for outputs in entry["outputs"].values())
    assert (replay.server.folder / "output" / "job-1" / item["filename"]).stat().st_size > 0
