"""What the processes of a bench use of the machine, as Linux counts it."""

import os
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Used:
    cpu_seconds: float
    memory_mb: float
    processes: int


def used_by(root: int) -> Used:
    """By a process and all below it. What they share counts once (PSS)."""
    family = _family(root)
    return Used(
        cpu_seconds=sum(_ticks(pid) for pid in family) / TICKS,
        memory_mb=sum(_proportional_kb(pid) for pid in family) / 1024,
        processes=len(family),
    )


def machine_cpu_seconds() -> float:
    """What all processes of the machine have used, whoever they belong to."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / TICKS


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def _family(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(parent_of(int(folder.name)), []).append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _stat(pid: int) -> list[str]:
    """What follows the name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def _ticks(pid: int) -> int:
    """Of the process, and of its children that have ended."""
    try:
        return sum(map(int, _stat(pid)[11:15]))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _proportional_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
