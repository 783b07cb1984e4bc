"""The documentation says what the code does: nothing is missing in it, nothing in it is made up.

Every check reads a text and returns what is wrong with it, so that the tests at the end can
feed it a wrong one. (Error codes are compared in tests/webapp/test_openapi.py.)
"""

import importlib
import os
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import models
from gpu_worker import settings as worker_settings
from gpu_worker.settings import Settings as WorkerSettings
from models.settings import Settings
from scripts.benches import BENCHES
from scripts.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: A path that leaves the repository; in pieces, because this file is searched as well.
OUTSIDE = "/".join(["..", "shared"])
#: Made by tools, and none of our text.
SKIPPED = re.compile(r"\.(?!ci$|gitignore$).*|__pycache__|build|dist|.*\.egg-info")

SETTING_ROW = re.compile(r"^\| `([A-Z][A-Z0-9_]+)` \| (?:`([^`]*)`|\(empty\)) \| (.+) \|$", re.M)
SETTING_NAME = re.compile(r"\bCOMFYFLEET_[A-Z0-9_]+\b")
DIAGRAM = re.compile(r"```mermaid\n(.*?)```", re.S)
ARROW = re.compile(r"^\s*(\S+) --> (\S+?)(?:: (.+))?$", re.M)
FUNCTION = re.compile(r"\b([a-z_]+)\.([a-z_]+)\b")
FENCED = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def every_page() -> str:
    return "\n".join(page.read_text() for page in PAGES)


# Settings


def settings_of_the_code() -> dict[str, str]:
    return {f"COMFYFLEET_{one.name.upper()}": str(one.default) for one in fields(Settings)}


def settings_of_the_worker() -> dict[str, str]:
    return {worker_settings.variable_of(one): str(one.default) for one in fields(WorkerSettings)}


def settings_pages() -> tuple[str, str]:
    """The backend's part of the page, and the GPU worker's."""
    backend, heading, worker = (ROOT / "docs/settings.md").read_text().partition("## GPU worker")
    assert heading
    return backend, worker


def settings_of(page: str) -> dict[str, str]:
    """What the page tells: the default of every variable."""
    return {name: default for name, default, _ in SETTING_ROW.findall(page)}


def unknown_settings(text: str) -> set[str]:
    known = {*settings_of_the_code(), *settings_of_the_worker()}
    return set(SETTING_NAME.findall(text)) - known


def test_every_setting_is_told_with_its_default_and_no_other() -> None:
    code = settings_of_the_code(), settings_of_the_worker()
    for page, settings in zip(settings_pages(), code, strict=True):
        assert settings_of(page) == settings
        rows = SETTING_ROW.findall(page)
        assert len(rows) == len(re.findall(r"^\| `[A-Z]", page, re.M)) == len(settings)


def test_no_page_names_a_setting_that_does_not_exist() -> None:
    assert unknown_settings(every_page()) == set()


# States


def every_status() -> dict[str, type[StrEnum]]:
    """Every enum of models/ that is called a status."""
    found = {}
    for module in pkgutil.iter_modules(models.__path__, "models."):
        for name, thing in vars(importlib.import_module(module.name)).items():
            if name.endswith("Status") and isinstance(thing, type) and issubclass(thing, StrEnum):
                found[name] = thing
    return found


def diagram_of(page: str, enum: str) -> str:
    """The diagram of the section that speaks of this enum; empty if there is none."""
    for section in page.split("\n## ")[1:]:
        if f"`{enum}`" in section and (found := DIAGRAM.search(section)):
            return found[1]
    return ""


def states_missing(page: str, enum: str, states: Iterable[str]) -> set[str]:
    """States without an arrow that leads to them, and one that leads on."""
    arrows = ARROW.findall(diagram_of(page, enum))
    return set(states) - ({source for source, *_ in arrows} & {target for _, target, _ in arrows})


def arrows_without_a_function(page: str) -> list[str]:
    """Arrows between states whose label begins with no function of ours that exists."""
    wrong = []
    for diagram in DIAGRAM.findall(page):
        for source, target, label in ARROW.findall(diagram):
            is_end = target == "[*]"
            names = FUNCTION.findall(label)
            told = label == "no function yet" or (names and all(exists(*name) for name in names))
            if not is_end and not told:
                wrong.append(f"{source} --> {target}: {label}")
    return wrong


def exists(module: str, function: str) -> bool:
    for folder in ("models", "tasks"):
        if (ROOT / folder / f"{module}.py").exists():
            return callable(getattr(importlib.import_module(f"{folder}.{module}"), function, None))
    return False


@pytest.mark.parametrize("enum", sorted(every_status()))
def test_every_state_is_in_its_diagram(enum: str) -> None:
    page = (ROOT / "docs/states.md").read_text()
    assert states_missing(page, enum, every_status()[enum]) == set()


def test_every_arrow_names_functions_that_exist() -> None:
    assert arrows_without_a_function((ROOT / "docs/states.md").read_text()) == []


# Commands


def every_command(group: Any = main, path: str = "comfyfleet") -> Iterator[str]:
    for name, command in group.commands.items():
        below = getattr(command, "commands", None)
        yield from every_command(command, f"{path} {name}") if below else [f"{path} {name}"]


def commands_missing(text: str, commands: Iterable[str]) -> list[str]:
    return [command for command in commands if command not in text]


def test_every_command_is_told() -> None:
    benches = [f"scripts/bench {name}" for name in BENCHES]
    scripts = [
        f"scripts/{path.name}"
        for path in (ROOT / "scripts").iterdir()
        if path.is_file() and "." not in path.name
    ]
    assert len(scripts) >= 5
    assert commands_missing(every_page(), [*every_command(), *benches, *scripts]) == []


# Links


def broken_links(page: Path, text: str) -> list[str]:
    """Links to files that are not there, or are not ours, or lack the heading."""
    links = LINK.findall(FENCED.sub("", text))
    ours = (link for link in links if not re.match(r"[a-z]+:", link))
    return [link for link in ours if not leads_somewhere(page, text, link)]


def leads_somewhere(page: Path, text: str, link: str) -> bool:
    path, _, anchor = link.partition("#")
    if not path:
        return anchor in anchors(text)
    target = (page.parent / path).resolve()
    if not (target.exists() and target.is_relative_to(ROOT)):
        return False
    return not anchor or anchor in anchors(target.read_text())


def anchors(text: str) -> set[str]:
    """What the headings of a page are called in its address."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES[1:] if page.name not in readme] == []


# Everything


def our_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not SKIPPED.fullmatch(name)]
        yield from (Path(folder, name) for name in names if not SKIPPED.fullmatch(name))


def files_with(root: Path, text: str) -> list[str]:
    return [
        str(path.relative_to(root))
        for path in our_files(root)
        if path.is_file() and text.encode() in path.read_bytes()
    ]


def test_no_file_points_out_of_the_repository() -> None:
    assert len(list(our_files(ROOT))) > 100
    assert files_with(ROOT, OUTSIDE) == []


# Each check can fail


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("| `COMFYFLEET_STAGE` | `dev` |", "| `COMFYFLEET_STAGE` | `prod` |"),
        ("| `COMFYFLEET_STAGE` | `dev` |", "| `COMFYFLEET_STAGES` | `dev` |"),
        ("| `COMFYFLEET_MAX_ATTEMPTS` | `3` |", "| `MAX_ATTEMPTS` | `3` |"),
        ("| `COMFYFLEET_CORS_ORIGINS` | (empty) |", "| `COMFYFLEET_CORS_ORIGINS` | `*` |"),
    ],
)
def test_a_wrong_setting_is_found(right: str, wrong: str) -> None:
    page, _ = settings_pages()
    assert page.count(right) == 1
    assert settings_of(page.replace(right, wrong)) != settings_of_the_code()


def test_a_setting_that_does_not_exist_is_found() -> None:
    text = "Set `COMFYFLEET_STAGE` and `COMFYFLEET_COLOUR`."
    assert unknown_settings(text) == {"COMFYFLEET_COLOUR"}


@pytest.mark.parametrize("enum", sorted(every_status()))
def test_a_missing_state_is_found(enum: str) -> None:
    page = (ROOT / "docs/states.md").read_text()
    states = {*every_status()[enum], "levitating"}
    assert states_missing(page, enum, states) == {"levitating"}
    without = page.replace(f"`{enum}`", "`Something`")
    assert states_missing(without, enum, every_status()[enum]) == set(every_status()[enum])


@pytest.mark.parametrize(
    "label", ["", "somebody", "jobs.levitate [POST]", "nowhere.submit", "orders.submit, orders.fly"]
)
def test_an_arrow_without_a_function_is_found(label: str) -> None:
    page = f"```mermaid\nstateDiagram-v2\n    a --> b{': ' if label else ''}{label}\n```"
    assert arrows_without_a_function(page) == [f"a --> b: {label}"]
    assert arrows_without_a_function(page.replace("--> b", "--> [*]")) == []


def test_a_missing_command_is_found() -> None:
    assert set(every_command()) >= {"comfyfleet serve", "comfyfleet ledger verify"}
    assert commands_missing("comfyfleet serve", every_command())
    assert "comfyfleet serve" not in commands_missing("comfyfleet serve", every_command())


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("nothing.md", True),
        ("../../elsewhere.md", True),
        ("api.md#no-such-heading", True),
        ("#nowhere", True),
        ("#here", False),
        ("api.md#ordering-a-job", False),
        ("../models/jobs.py", False),
        ("https://example.com/nothing.md", False),
    ],
)
def test_a_broken_link_is_found(link: str, is_broken: bool) -> None:
    page = ROOT / "docs/imagined.md"
    text = f"## Here\n\nSee [this]({link}).\n\n```\n[not](a-link.md)\n```\n"
    assert broken_links(page, text) == ([link] if is_broken else [])


def test_a_file_that_points_outside_is_found(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".ci").mkdir()
    for name in (".venv/a.txt", ".ci/run", "b.txt", "c.txt"):
        (tmp_path / name).write_text(f"see {OUTSIDE}/x" if name != "c.txt" else "nothing")
    assert sorted(files_with(tmp_path, OUTSIDE)) == [".ci/run", "b.txt"]
