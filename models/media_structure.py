"""What a file is by its first bytes, and whether it ends where its format says.

Decoders stop at the end of the picture and never look at what comes after it. So an
image with an archive or a script behind it decodes well, and is something else to
another program. Here the file has to end where its format ends. Cameras do add to their
files, and these additions are known: more pictures, a short film, Samsung's records.

Data hidden where a format allows any text (a JPEG comment, an MP4 `free` box) is not
found here. Against that, files are only ever served as downloads of their own type.
"""

import mmap
import os
import re
import struct

#: A file is one of these, or it is not accepted. The names are for people.
NAMES = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/webp": "WebP",
    "image/gif": "GIF",
    "video/mp4": "MP4",
    "video/webm": "WebM",
    "video/quicktime": "QuickTime",
}

_STILLS_IN_MP4 = {b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1", b"crx "}
_OLD_QUICKTIME = {b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"}
_BOX = re.compile(rb"[A-Za-z0-9\xa9 _-]{4}\Z")
_JPEG_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])", re.DOTALL)
_NOT_ZERO = re.compile(rb"[^\0]")
_ZIP_END = b"PK\x05\x06\0\0\0\0"
_EBML_UNKNOWN = -1
_ZIP_END_WITHIN = 22 + 65_535  # the record and its comment


class Broken(Exception):
    """The file does not end where its format does; the text is for the user."""


def sniff(head: bytes) -> str | None:
    """The type by the first 64 bytes. It only says which decoder to try."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    if head.startswith(b"\x1aE\xdf\xa3") and b"webm" in head:
        return "video/webm"
    if head[4:8] == b"ftyp" and head[8:12] not in _STILLS_IN_MP4:
        return "video/quicktime" if head[8:12] == b"qt  " else "video/mp4"
    return "video/quicktime" if head[4:8] in _OLD_QUICKTIME else None


def check_end(descriptor: int, mime_type: str) -> None:
    """Broken, unless the file ends with its content."""
    size = os.fstat(descriptor).st_size
    try:
        end = _ENDS[mime_type](descriptor, size)
    except (struct.error, IndexError):
        end = size + 1  # it breaks off inside one of its own records
    if end > size:
        raise Broken("The file is cut off before its end. Please upload it again.")
    tail_at = max(0, size - _ZIP_END_WITHIN)
    if not _only_zeros(descriptor, end) or _ZIP_END in os.pread(descriptor, size, tail_at):
        raise Broken(
            f"There is other data in the file besides the {NAMES[mime_type]}. "
            "Please save it again with another program and upload that."
        )


def _only_zeros(descriptor: int, at: int) -> bool:
    while chunk := os.pread(descriptor, 65_536, at):
        if chunk.strip(b"\0"):
            return False
        at += len(chunk)
    return True


def _png_end(descriptor: int, size: int) -> int:
    at, kind = 8, b""
    while kind != b"IEND" and at <= size:
        length, kind = struct.unpack(">I4s", os.pread(descriptor, 8, at))
        at += 12 + length
    return at


def _webp_end(descriptor: int, _size: int) -> int:
    length = int.from_bytes(os.pread(descriptor, 4, 4), "little")
    return 8 + length + length % 2


def _gif_end(descriptor: int, size: int) -> int:
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as data:
        at = 13 + _colour_table_bytes(data[10])
        while (block := data[at]) != 0x3B:
            if block == 0x21:  # an extension and its label
                at += 2
            elif block == 0x2C:  # a picture: where, its colours, and one byte for its codes
                at += 11 + _colour_table_bytes(data[at + 9])
            else:
                raise Broken("The GIF is damaged. Please save it again and upload that.")
            while data[at]:
                at += 1 + data[at]
            at += 1
        return at + 1


def _colour_table_bytes(flags: int) -> int:
    return 6 << (flags & 7) if flags & 0x80 else 0


def _jpeg_end(descriptor: int, size: int) -> int:
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as data:
        end = more = 0
        while data[more : more + 3] == b"\xff\xd8\xff":  # cameras add previews to the picture
            end = _one_jpeg_end(data, more)
            found = _NOT_ZERO.search(data, end)
            more = found.start() if found else size
        # What follows may begin with zeros that look like padding: a film's first length does.
        if data[more + 1 : more + 5] == b"ftyp" and more - 3 >= end:
            return _boxes_end(descriptor, size, more - 3)
        return size if end <= _samsung_record_start(data) <= more else end


def _one_jpeg_end(data: mmap.mmap, at: int) -> int:
    at += 2
    while marker := _JPEG_MARKER.search(data, at):
        at = marker.end()
        if marker[1] == b"\xd9":
            return at
        if marker[1] != b"\x01":
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
    return len(data) + 1


def _samsung_record_start(data: mmap.mmap) -> int:
    """Blocks, a directory ("SEFH") that says how far before it each begins, "SEFT"."""
    directory = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if data[-4:] != b"SEFT" or directory < 0 or data[directory : directory + 4] != b"SEFH":
        return -1
    count = int.from_bytes(data[directory + 8 : directory + 12], "little")
    places = range(directory + 16, len(data) - 8, 12)[:count]
    farthest = max((int.from_bytes(data[at : at + 4], "little") for at in places), default=0)
    return directory - farthest


def _boxes_end(descriptor: int, size: int, at: int = 0) -> int:
    """MP4 and QuickTime: boxes, each with its length, up to the end."""
    while at < size:
        length, kind = struct.unpack(">I4s", os.pread(descriptor, 8, at))
        if length == 0 and kind == b"mdat":
            return size  # "the rest of the file"
        if length == 1:
            (length,) = struct.unpack(">Q", os.pread(descriptor, 8, at + 8))
        if length < 8 or not _BOX.match(kind):
            break  # not a box: whatever begins here does not belong to the film
        at += length
    return at


def _webm_end(descriptor: int, size: int) -> int:
    length, at = _ebml_length(descriptor, 4)
    segment = at + length
    if os.pread(descriptor, 4, segment) != b"\x18S\x80g":
        raise Broken("The WebM is damaged. Please save it again and upload that.")
    length, at = _ebml_length(descriptor, segment + 4)
    # A browser's recording does not know its length: all ones. It ends where it ends.
    return size if length == _EBML_UNKNOWN else at + length


def _ebml_length(descriptor: int, at: int) -> tuple[int, int]:
    """The length written at a place, and where the content begins."""
    first = os.pread(descriptor, 1, at)[0]
    width = 9 - first.bit_length()
    if width > 8:
        raise Broken("The WebM is damaged. Please save it again and upload that.")
    number = os.pread(descriptor, width, at)
    value = int.from_bytes(number, "big") - (1 << 7 * width)
    unknown = value == (1 << 7 * width) - 1
    return _EBML_UNKNOWN if unknown else value, at + width


_ENDS = {
    "image/png": _png_end,
    "image/jpeg": _jpeg_end,
    "image/webp": _webp_end,
    "image/gif": _gif_end,
    "video/mp4": _boxes_end,
    "video/quicktime": _boxes_end,
    "video/webm": _webm_end,
}
