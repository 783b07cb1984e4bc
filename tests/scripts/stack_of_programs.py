"""A supervisor with small real programs, as a process of its own: tests/scripts/programs.py.

    python -m tests.scripts.stack_of_programs FOLDER NAME:TIER:PROGRAM...

PROGRAM is a Python program. It can be used when the file FOLDER/NAME is there; each is told
its own file in the variable MINE, and appends what it wants to remember to FOLDER/story.
"""

import os
import sys
from pathlib import Path

from scripts import supervisor
from scripts.log_lines import LogLines
from scripts.state_folder import StateFolder
from scripts.supervisor import Part, PartFailed, StopRequest, Supervisor

PREFACE = """
import os, signal, sys, time
def note(text):
    with open(os.environ["STORY"], "a") as story:
        story.write(os.environ["NAME"] + " " + text + "\\n")
def answer():
    open(os.environ["MINE"], "w").write(str(os.getpid()))
def bye(*_):
    note("stops")
    sys.exit(0)
signal.signal(signal.SIGTERM, bye)
note("starts")
"""


def part(folder: Path, word: str) -> Part:
    name, tier, program = word.split(":", 2)
    mine = folder / name
    names = {"NAME": name, "MINE": str(mine), "STORY": str(folder / "story")}
    return Part(
        name=name,
        command=[sys.executable, "-S", "-c", PREFACE + program],
        environment={**os.environ, **names},
        tier=int(tier),
        answers=lambda _: mine.exists(),
        stop_seconds=2.0,
    )


def main(folder: Path, words: list[str]) -> int:
    supervisor.START_SECONDS = float(os.environ.get("START_SECONDS", "30"))
    stop_request = StopRequest().install()
    parts = [part(folder, word) for word in words]
    log = LogLines(folder / "logs", sys.stdout, names=[one.name for one in parts])
    with StateFolder(folder).locked() as lock:
        watched = Supervisor(parts, log, stop_request, keep_open=[lock])
        try:
            if watched.start():
                (folder / "all").touch()
                watched.run()
        except PartFailed as failed:
            sys.stderr.write(f"{failed}\n")
            return 1
        finally:
            watched.stop()
            log.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
