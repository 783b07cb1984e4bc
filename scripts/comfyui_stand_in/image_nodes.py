"""Nodes for images."""

import json
import math
import random
import string
from typing import Any

from PIL import Image, ImageFilter, ImageOps, ImageSequence, PngImagePlugin

from scripts.comfyui_stand_in.node_classes import (
    HIDDEN,
    FileInput,
    Graph,
    Images,
    Result,
    Work,
    node,
)

_MOST_BYTES = 4 << 30  # of one colour as 32-bit floats, as the real one would hold it
_SIDE = {"default": 512, "min": 1, "max": 16384, "step": 1}
_SCALED_SIDE = {"default": 512, "min": 0, "max": 16384, "step": 1}
_METHODS = {
    "nearest-exact": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "area": Image.Resampling.BOX,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_PREFIX_TIP = (
    "The prefix for the file to save. This may include formatting information such as "
    "%date:yyyy-MM-dd% or %Empty Latent Image.width% to include values from nodes."
)
_TO_SAVE = ["IMAGE", {"tooltip": "The images to save."}]


@node(
    "EmptyImage",
    required={
        "width": ["INT", _SIDE],
        "height": ["INT", _SIDE],
        "batch_size": ["INT", {"default": 1, "min": 1, "max": 4096}],
        "color": ["INT", {"default": 0, "min": 0, "max": 0xFFFFFF, "step": 1, "display": "color"}],
    },
    returns=("IMAGE",),
)
def empty_image(work: Work, *, width: int, height: int, batch_size: int, color: int) -> Result:  # noqa: ARG001
    size_bytes = width * height * batch_size * 4
    if size_bytes > _MOST_BYTES:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            f"memory: you tried to allocate {size_bytes} bytes. Error code 12 (Cannot allocate "
            "memory)"
        )
    red, green, blue = color >> 16 & 255, color >> 8 & 255, color & 255
    picture = Image.new("RGB", (width, height), (red, green, blue))
    return Result(values=(Images.of([picture] * batch_size),))


@node(
    "LoadImage",
    required={"image": [[], {"image_upload": True}]},
    returns=("IMAGE", "MASK"),
    file=FileInput(name="image", kinds=("image",)),
    title="Load Image",
)
def load_image(work: Work, *, image: str) -> Result:
    # As a text, because the message of Pillow about a broken file shows what it was given.
    with Image.open(str(work.folders.readable(image))) as opened:
        frames = [ImageOps.exif_transpose(frame) for frame in ImageSequence.Iterator(opened)]
    pictures = [frame.convert("RGB") for frame in frames]
    same_size = [picture for picture in pictures if picture.size == pictures[0].size]
    return Result(values=(Images.of(same_size), [_mask(frame) for frame in frames]))


def _mask(frame: Image.Image) -> Image.Image:
    if "A" in frame.getbands():
        return ImageOps.invert(frame.getchannel("A"))
    return Image.new("L", (64, 64))


@node(
    "SolidMask",
    required={
        "value": ["FLOAT", {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.01}],
        "width": ["INT", _SIDE],
        "height": ["INT", _SIDE],
    },
    returns=("MASK",),
    category="mask",
)
def solid_mask(work: Work, *, value: float, width: int, height: int) -> Result:  # noqa: ARG001
    return Result(values=([Image.new("L", (width, height), round(value * 255))],))


@node(
    "ImageInvert",
    required={"image": ["IMAGE"]},
    returns=("IMAGE",),
    title="Invert Image",
)
def image_invert(work: Work, *, image: Images) -> Result:  # noqa: ARG001
    return Result(values=(image.each(ImageOps.invert),))


@node(
    "ImageScale",
    required={
        "image": ["IMAGE"],
        "upscale_method": [list(_METHODS), {}],
        "width": ["INT", _SCALED_SIDE],
        "height": ["INT", _SCALED_SIDE],
        "crop": [["disabled", "center"], {}],
    },
    returns=("IMAGE",),
    title="Upscale Image",
    category="image/upscaling",
)
def image_scale(
    work: Work,  # noqa: ARG001
    *,
    image: Images,
    upscale_method: str,
    width: int,
    height: int,
    crop: str,
) -> Result:
    old_width, old_height = image.size
    new_width = width or (height and max(1, round(old_width * height / old_height))) or old_width
    new_height = height or max(1, round(old_height * new_width / old_width))
    size, method = (new_width, new_height), _METHODS[upscale_method]
    if crop == "center":
        return Result(values=(image.each(lambda one: ImageOps.fit(one, size, method)),))
    return Result(values=(image.each(lambda one: one.resize(size, method)),))


@node(
    "ImageBlur",
    required={
        "image": ["IMAGE", {}],
        "blur_radius": ["INT", {"default": 1, "min": 1, "max": 31, "step": 1}],
        "sigma": ["FLOAT", {"default": 1.0, "min": 0.1, "max": 10.0, "step": 0.1}],
    },
    returns=("IMAGE",),
    category="image/postprocessing",
    module="comfy_extras.nodes_post_processing",
    is_new_style=True,
)
def image_blur(work: Work, *, image: Images, blur_radius: int, sigma: float) -> Result:  # noqa: ARG001
    width, height = image.size
    for argument, dimension, side in ((4, 3, width), (6, 2, height)):
        if blur_radius >= side:
            raise RuntimeError(
                f"Argument #{argument}: Padding size should be less than the corresponding input "
                f"dimension, but got: padding ({blur_radius}, {blur_radius}) at dimension "
                f"{dimension} of input [{image.count}, 3, {height}, {width}]"
            )
    blur = ImageFilter.GaussianBlur(_spread_pixels(blur_radius, sigma))
    return Result(values=(image.each(lambda one: one.filter(blur)),))


def _spread_pixels(radius: int, sigma: float) -> float:
    """The standard deviation of the kernel: sigma counts in radii, and the kernel is cut off."""
    places = range(-radius, radius + 1)
    weights = [math.exp(-((place / radius) ** 2) / (2 * sigma**2)) for place in places]
    squares = sum(w * place**2 for w, place in zip(weights, places, strict=True))
    return math.sqrt(squares / sum(weights))


@node(
    "SaveImage",
    required={
        "images": _TO_SAVE,
        "filename_prefix": ["STRING", {"default": "ComfyUI", "tooltip": _PREFIX_TIP}],
    },
    hidden=HIDDEN,
    is_output=True,
    title="Save Image",
    description="Saves the input images to your ComfyUI output directory.",
)
def save_image(work: Work, *, images: Images, filename_prefix: str) -> Result:
    return _saved(work, images, filename_prefix, kind="output", compress_level=4)


@node(
    "PreviewImage",
    required={"images": _TO_SAVE},
    hidden=HIDDEN,
    is_output=True,
    title="Preview Image",
    description="Saves the input images to your ComfyUI output directory.",
)
def preview_image(work: Work, *, images: Images) -> Result:
    prefix = "ComfyUI_temp_" + "".join(random.choices(string.ascii_lowercase, k=5))  # noqa: S311
    return _saved(work, images, prefix, kind="temp", compress_level=1)


def _saved(work: Work, images: Images, prefix: str, *, kind: str, compress_level: int) -> Result:
    new = work.folders.new_file(prefix, kind=kind, size=images.size)
    metadata = _metadata(work.prompt, work.extra_pnginfo)
    saved = []
    for offset, picture in enumerate(images.read()):
        name = new.name("png", offset=offset).replace("%batch_num%", str(offset))
        picture.save(f"{new.folder}/{name}", pnginfo=metadata, compress_level=compress_level)
        saved.append({"filename": name, "subfolder": new.subfolder, "type": kind})
    return Result(ui={"images": saved})


def _metadata(prompt: Graph, extra_pnginfo: Any) -> PngImagePlugin.PngInfo:
    metadata = PngImagePlugin.PngInfo()
    metadata.add_text("prompt", json.dumps(prompt))
    for name in extra_pnginfo or ():
        metadata.add_text(name, json.dumps(extra_pnginfo[name]))
    return metadata


@node("SaveImageWebsocket", required={"images": ["IMAGE"]}, is_output=True, category="api/image")
def save_image_websocket(work: Work, *, images: Images) -> Result:
    for index, picture in enumerate(images.read()):
        work.report(index, images.count, picture)
    return Result()
