"""What a bench found, as a table for people and a file for programs."""

import json
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    bench: str
    figures: dict[str, float]
    samples: dict[str, Any]

    def table(self) -> str:
        width = max(len(name) for name in self.figures)
        rows = [f"{name:<{width}}  {_number(value):>12}" for name, value in self.figures.items()]
        return "\n".join([f"bench {self.bench}", *rows])

    def write(self, path: Path) -> None:
        document = {
            "bench": self.bench,
            "machine": machine(),
            "figures": self.figures,
            "samples": self.samples,
        }
        path.write_text(json.dumps(document, indent=2) + "\n")


def progress(sentence: str) -> None:
    """Benches take minutes: say where one is."""
    print(f"  {sentence} ...", file=sys.stderr, flush=True)


def _number(value: float) -> str:
    return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
