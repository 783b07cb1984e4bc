"""Which of our folders may import which, and which names no folder or module may have."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"models", "tasks", "webapp", "gpu_worker", "scripts", "tests"}
MAY_IMPORT = {
    "models": set[str](),
    "tasks": {"models"},
    "webapp": {"models", "tasks"},
    "gpu_worker": set[str](),  # ships alone, to machines that have nothing else of ours
    "scripts": OURS - {"tests"},
    "tests": OURS,
}
BANNED_NAMES = {"utils", "helpers", "services", "managers"}


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def forbidden_imports(folder: str, source: str) -> set[str]:
    return (set(imported(source)) & OURS) - MAY_IMPORT[folder] - {folder}


def banned_names(path: Path) -> set[str]:
    return BANNED_NAMES & {path.stem, *path.parent.parts}


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_a_folder_imports_only_what_it_may(folder: str) -> None:
    wrong = {}
    for path in (ROOT / folder).rglob("*.py"):
        if found := forbidden_imports(folder, path.read_text()):
            wrong[str(path.relative_to(ROOT))] = found
    assert wrong == {}


def test_no_folder_or_module_has_a_name_that_says_nothing() -> None:
    paths = [path.relative_to(ROOT) for folder in OURS for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in paths if banned_names(path)] == []


@pytest.mark.parametrize(
    ("folder", "source", "found"),
    [
        ("models", "def f():\n    from webapp.api import jobs", {"webapp"}),
        ("models", "import models.jobs, tasks.app as app", {"tasks"}),
        ("gpu_worker", "from models import errors", {"models"}),
        ("tasks", "import tests.stand_ins", {"tests"}),
        ("webapp", "from models import jobs\nfrom . import auth\nimport json", set()),
    ],
)
def test_an_import_against_the_arrows_is_found(folder: str, source: str, found: set[str]) -> None:
    assert forbidden_imports(folder, source) == found


@pytest.mark.parametrize("path", ["models/utils.py", "webapp/services/mail.py"])
def test_a_banned_name_is_found(path: str) -> None:
    assert banned_names(Path(path))
