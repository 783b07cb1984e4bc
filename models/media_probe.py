"""Decodes one file under limits; models.media runs this as a process of its own.

    python -m models.media_probe PATH '{"mime_type": ..., "image_max_pixels": ..., ...}'

One line of JSON answers: {"media": {...}} or {"refused": code, "detail": sentence}. A
decoder that eats memory, loops or crashes takes this process with it and nothing else.
"""

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from models import media_structure
from models.media_decode import (
    NOT_ALLOWED,
    UNREADABLE,
    Found,
    Limits,
    Refused,
    decode_image,
    decode_video,
)

_IMAGE_MAX_BYTES = 256 * 1024**2


def main() -> None:
    limits = Limits(**json.loads(sys.argv[2]))
    restrict(limits)
    print(json.dumps(answer(sys.argv[1], limits)))  # noqa: T201


def restrict(limits: Limits) -> None:
    """Limits of the kernel for all that follows; this process can't raise them again."""
    signal.alarm(limits.seconds)  # by the clock; the limit below counts work only
    for what, most in (
        (resource.RLIMIT_AS, limits.memory_mb * 1024**2),
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 64 * 1024),
        (resource.RLIMIT_NOFILE, 64),
    ):
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError):  # macOS refuses to limit address space
            resource.setrlimit(what, (most, most))


def answer(path: str, limits: Limits) -> dict[str, Any]:
    name = media_structure.NAMES[limits.mime_type]
    try:
        return {"media": asdict(examine(path, limits))}
    except Refused as refused:
        return {"refused": refused.code, "detail": str(refused)}
    except media_structure.Broken as broken:
        return {"refused": UNREADABLE, "detail": str(broken)}
    except MemoryError:
        return {"refused": UNREADABLE, "detail": f"Decoding this {name} takes too much memory."}
    except ImportError:
        raise  # our installation is broken, not the file
    except Exception as error:  # decoders raise all sorts of things at damaged files
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        detail = f"The file can't be decoded as {name}; it is damaged or not one."
        return {"refused": UNREADABLE, "detail": detail}


def examine(path: str, limits: Limits) -> Found:
    is_video = limits.mime_type.startswith("video/")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        check_type(os.pread(descriptor, 64, 0), limits.mime_type)
        if not is_video and os.fstat(descriptor).st_size > _IMAGE_MAX_BYTES:
            raise Refused(NOT_ALLOWED, "An image may have at most 256 MB.")
        media_structure.check_end(descriptor, limits.mime_type)
    finally:
        os.close(descriptor)
    return decode_video(path, limits) if is_video else decode_image(path, limits)


def check_type(head: bytes, claimed: str) -> None:
    found = media_structure.sniff(head)
    films = {"video/mp4", "video/quicktime"}  # one format, and cameras mix up its two names
    if found == claimed or {found, claimed} == films:
        return
    names = media_structure.NAMES
    if found is None:
        raise Refused(UNREADABLE, f"This file is not {names[claimed]}.")
    raise Refused(
        UNREADABLE, f"This file is {names[found]} ({found}), but it was announced as {claimed}."
    )


if __name__ == "__main__":
    main()
