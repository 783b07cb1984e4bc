"""`scripts/test chaos`: one run, told on the screen."""

import argparse
import logging
import secrets
import shutil
import sys
from pathlib import Path

from scripts.state_folder import FolderInUse, StateFolder
from scripts.supervisor import PartFailed, StopRequest
from tests.chaos import report
from tests.chaos.run import Outcome, Run
from tests.chaos.town import Interrupted, Town, opened

DESCRIPTION = """\
Hurt a whole system of real processes at random, and see that no job, no token and no message is
lost and no file is left over. Exit code 0: so it was. 1: it was not, and all that is known of it
is printed. docs/chaos.md tells more.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/test chaos",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--faults", type=int, default=50, metavar="N", help="default: 50")
    parser.add_argument("--seed", type=int, help="have the faults of another run again")
    parser.add_argument("--state", default=".state/chaos", help="its folder; emptied first")
    given = parser.parse_args()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    folder = StateFolder(Path(given.state))
    if not _is_ours(folder.path):
        parser.error(f"{folder.path} has other files in it.")
    try:
        with folder.locked():
            return _run(folder.path, seed=seed, wanted=given.faults)
    except (FolderInUse, PartFailed) as trouble:
        say(f"chaos: {trouble}")
        return 2


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _is_ours(folder: Path) -> bool:
    others = folder.exists() and any(path.suffix != ".lock" for path in folder.iterdir())
    return not others or (folder / "seed").exists()


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.suffix != ".lock":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _run(folder: Path, *, seed: int, wanted: int) -> int:
    _empty(folder)
    (folder / "seed").write_text(f"{seed}\n")
    (folder / "logs").mkdir()
    logging.basicConfig(filename=folder / "logs" / "chaos.log")
    stop_request = StopRequest().install()
    say(f"chaos: {wanted} faults, seed {seed}, in {folder}")
    try:
        with opened(folder, stop_request) as town:
            outcome = Run(town, seed=seed, wanted=wanted, stop_request=stop_request).perform()
            is_well = _told(outcome, town)
    except Interrupted:
        say("chaos: interrupted")
        return 130
    if is_well:
        _empty(folder)
        say("chaos: nothing was lost, nothing is left over")
    return 0 if is_well else 1


def _told(outcome: Outcome, town: Town) -> bool:
    """Whether all is well."""
    say(report.summary(outcome))
    if outcome.findings:
        say(report.failure(outcome, town.backend, town.state.logs))
    return not outcome.findings


if __name__ == "__main__":
    sys.exit(main())
