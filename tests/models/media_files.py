"""Pictures and films for the tests, honest and hostile, as bytes."""

import io
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import av
from PIL import Image


def picture(
    kind: str, size: tuple[int, int] = (64, 48), *, frames: int = 1, noise: bool = False
) -> bytes:
    """`kind` is Pillow's name of the format."""
    plain = [Image.new("RGB", size, (n * 7 % 256, n % 256, 90)) for n in range(frames)]
    images = [Image.effect_noise(size, 80).convert("RGB") for _ in plain] if noise else plain
    out = io.BytesIO()
    animated = {"save_all": True, "append_images": images[1:], "duration": 40}
    images[0].save(out, kind, **(animated if frames > 1 else {}))
    return out.getvalue()


def film(
    container: str,
    codec: str,
    *,
    seconds: float = 1,
    size: tuple[int, int] = (64, 48),
    rate: int = 25,
    pixels: str = "yuv420p",
    **options: str,
) -> bytes:
    frames: Any = av.VideoFrame
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "film")
        with av.open(str(path), "w", format=container, options=options) as output:
            stream: Any = output.add_stream(codec, rate=rate)
            stream.width, stream.height, stream.pix_fmt = *size, pixels
            for number in range(round(seconds * rate)):
                image = Image.effect_noise((64, 48), 10 + number % 90).resize(size)
                output.mux(stream.encode(frames.from_image(image.convert("RGB"))))
            output.mux(stream.encode())
        return path.read_bytes()


def song() -> bytes:
    """An MP4 without a film."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "song")
        with av.open(str(path), "w", format="mp4") as output:
            stream = output.add_stream("aac", rate=44100)
            frame = av.AudioFrame(format="fltp", layout="mono", samples=1024)
            frame.sample_rate = 44100
            frame.planes[0].update(bytes(4096))
            output.mux(stream.encode(frame))
            output.mux(stream.encode())
        return path.read_bytes()


def png_bomb(width: int, height: int, *, rows: int) -> bytes:
    """A PNG that claims a size; `rows` of zeros cost next to nothing in the file."""
    pixels = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)  # one bit a pixel
    body = b"".join(pixels.compress(row) for _ in range(rows)) + pixels.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", body), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, data) for kind, data in parts)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def gif_bomb(frames: int, screen: tuple[int, int] = (1, 1)) -> bytes:
    """A GIF of many frames of one pixel. Each is drawn on the whole screen."""
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + bytes(6)
    return head + frame * frames + b"\x3b"


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("payload.js", "alert(1)")
    return out.getvalue()


def samsung_record() -> bytes:
    """What Samsung's cameras put behind every JPEG."""
    block = struct.pack("<HHI", 0, 0x0A01, 14) + b"Image_UTC_Data" + b"1700000000000"
    directory = (
        b"SEFH" + struct.pack("<III", 107, 1, 0x0A010000) + struct.pack("<II", *[len(block)] * 2)
    )
    return block + directory + struct.pack("<I", len(directory)) + b"SEFT"
