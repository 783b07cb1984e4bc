"""How long each step of a job takes: told with its report, and a span each."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpu_worker import spans


@dataclass
class Timings:
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            with spans.span(step):
                yield
        finally:
            self.seconds[f"{step}_seconds"] = round(time.monotonic() - begin, 4)
