"""One file as a form, read from disk while it is sent: a video never has to fit in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

CHUNK_BYTES = 1 << 20


class FileForm:
    """For `requests`: a body with a length that is sent piece by piece.

    `check` is called before each piece, and may raise to break the sending off. The name goes
    into a header as it is, so it must be one of ours: letters, digits, a dot.
    """

    def __init__(self, path: Path, *, field: str, name: str, check: Callable[[], None]) -> None:
        boundary = uuid4().hex
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self.path, self.check = path, check
        self.head = (
            f"--{boundary}\r\n"
            f'Content-Disposition: form-data; name="{field}"; filename="{name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        self.tail = f"\r\n--{boundary}--\r\n".encode()

    def __len__(self) -> int:
        return len(self.head) + self.path.stat().st_size + len(self.tail)

    def __iter__(self) -> Iterator[bytes]:
        yield self.head
        with self.path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                self.check()
                yield chunk
        yield self.tail
