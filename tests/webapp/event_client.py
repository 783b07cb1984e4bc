"""Reads an event stream as a browser would."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests


@dataclass(frozen=True)
class Told:
    id: str
    name: str
    data: dict[str, Any]


@contextmanager
def watching(url: str, headers: dict[str, str], *, seconds: float = 20) -> Iterator[Iterator[Told]]:
    """The events of a stream, as they come."""
    with requests.get(url, headers=headers, stream=True, timeout=seconds) as answer:
        assert answer.status_code == 200, answer.text
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["Cache-Control"] == "no-store"
        yield _events(answer)


def _events(answer: requests.Response) -> Iterator[Told]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines(chunk_size=1, decode_unicode=True):
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Told(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}
