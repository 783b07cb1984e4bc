"""Which faults a run has: what is hurt, how, for how long, and after which pause.

All of it follows from the seed, fault by fault: the first fifty of a thousand are the fifty of
a short run with the same seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

PAUSE_SECONDS = (0.4, 3.6)  # from the begin of one fault to that of the next: some overlap


class Kind(StrEnum):
    KILL = "kill"  #: kill -9, and it is started again
    KILL_CHILD = "kill child"  #: of one of its own processes
    STOP = "stop"  #: SIGSTOP to all its processes, and SIGCONT a while later
    STOP_CHILD = "stop child"  #: the same, one of its own processes
    RESTART = "restart"  #: asked to end; killed if it has not in time
    FLUSH = "flush"  #: Redis forgets everything
    WIPE = "wipe"  #: kill -9, and its files are gone
    RESET = "reset"  #: the connections of a link break
    CUT = "cut"  #: a link refuses connections for a while
    STALL = "stall"  #: nothing passes a link for a while
    SLOW = "slow"  #: a link is slow for a while
    MUTE = "mute"  #: a link loses the answers for a while


@dataclass(frozen=True)
class Fault:
    number: int
    kind: Kind
    target: str
    pause_seconds: float  # since the one before
    seconds: float  # how long it lasts, if it is of the kind that lasts
    choice: int  # which of the target's processes, of as many as there are then

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.1f} s" if self.kind in LASTING else ""
        return f"{self.number:>4} {self.kind} {self.target}{lasts}"


#: How often a kind is drawn, of all.
WEIGHTS = {
    Kind.KILL: 20,
    Kind.KILL_CHILD: 9,
    Kind.STOP: 14,
    Kind.STOP_CHILD: 5,
    Kind.RESTART: 13,
    Kind.FLUSH: 5,
    Kind.WIPE: 5,
    Kind.RESET: 6,
    Kind.CUT: 7,
    Kind.STALL: 7,
    Kind.SLOW: 4,
    Kind.MUTE: 7,
}

#: The longest: longer than a lease, so that some run out, and shorter than people's patience.
LASTING = {
    Kind.STOP: 9.0,
    Kind.STOP_CHILD: 9.0,
    Kind.RESTART: 8.0,
    Kind.CUT: 9.0,
    Kind.STALL: 9.0,
    Kind.SLOW: 9.0,
    Kind.MUTE: 5.0,
}

GPU_WORKERS = tuple(f"gpu-{number}" for number in (1, 2, 3))
COMFYUIS = tuple(f"comfyui-{number}" for number in (1, 2, 3))
POSTGRES = ("central", "pool")
PARTS = ("web", "control", "redis", "receiver", *POSTGRES, *GPU_WORKERS, *COMFYUIS)
HAVE_CHILDREN = ("web", "control", *POSTGRES)  # web's workers, the control worker's beat
LINKS = (
    "clients>web",
    *(f"{worker}>web" for worker in GPU_WORKERS),
    *(f"{worker}>redis" for worker in GPU_WORKERS),
)

TARGETS: dict[Kind, Sequence[str]] = {
    Kind.KILL: PARTS,
    Kind.KILL_CHILD: HAVE_CHILDREN,
    Kind.STOP: PARTS,
    Kind.STOP_CHILD: HAVE_CHILDREN,
    Kind.RESTART: PARTS,
    Kind.FLUSH: ("redis",),
    Kind.WIPE: ("redis", *GPU_WORKERS, *COMFYUIS),
    Kind.RESET: LINKS,
    Kind.CUT: LINKS,
    Kind.STALL: LINKS,
    Kind.SLOW: LINKS,
    Kind.MUTE: LINKS,
}


def drawn(seed: int, *, faults: int) -> Iterator[Fault]:
    random = Random(seed)
    for number in range(1, faults + 1):
        kind = random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        yield Fault(
            number=number,
            kind=kind,
            target=random.choice(TARGETS[kind]),
            pause_seconds=round(random.uniform(*PAUSE_SECONDS), 1),
            seconds=_seconds(random, LASTING.get(kind, 0.0)),
            choice=random.randrange(1000),
        )


def _seconds(random: Random, longest: float) -> float:
    """More short ones than long ones."""
    return round(0.3 + max(longest - 0.3, 0.0) * random.random() ** 2, 1)
