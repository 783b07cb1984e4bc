"""The dashboard and the alert rules speak of figures that are really told, and of no others."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from flask import Flask
from prometheus_client.parser import text_string_to_metric_families

from models.base import utcnow
from tasks import metrics
from tests.webapp.calls import Caller, completed, ordered
from tests.webapp.conftest import AppWith

FOLDER = Path(__file__).parents[2] / "docs/observability"
OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"

NAME = re.compile(r"\bcomfyfleet_[a-z0-9_]+")
SELECTOR = re.compile(r"\b(comfyfleet_[a-z0-9_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
BY = re.compile(r"\b(?:by|without) \(([^)]*)\)")
SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)[^}]*\}\}")


@pytest.fixture
def samples(plain_app_with: AppWith, plain_caller: Any) -> dict[str, set[str]]:
    """Every sample of a house with all kinds of figures: its name, and the names of its labels."""
    app = plain_app_with(cloudwatch_namespace="")
    ada: Caller = plain_caller(tokens=100)
    completed(ada, ordered(ada, "colour-card")["id"])
    metrics.run_once(app.extensions["comfyfleet"], now=utcnow())
    publishing: Flask = plain_app_with(cloudwatch_namespace="somewhere")
    answer = publishing.test_client().get("/metrics")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
    return board


def targets() -> Iterator[dict[str, Any]]:
    for panel in dashboard()["panels"]:
        yield from panel.get("targets", [])


def expressions() -> list[str]:
    asked = [variable["definition"] for variable in dashboard()["templating"]["list"][1:]]
    return [rule["expr"] for rule in rules()] + [one["expr"] for one in targets()] + asked


def wrong_in(expression: str, samples: dict[str, set[str]]) -> list[str]:
    wrong = []
    for name, selector in SELECTOR.findall(expression):
        if name not in samples:
            wrong.append(name)
        wrong += [f"{name}{{{one}}}" for one in LABEL.findall(selector)
                  if one not in samples.get(name, set())]  # fmt: skip
    named = {name for name, _ in SELECTOR.findall(expression)}
    labels = {label for name in named for label in samples.get(name, set())}
    for group in BY.findall(expression):
        wrong += [one.strip() for one in group.split(",") if one.strip() not in labels]
    return wrong


def test_every_figure_that_is_asked_for_is_told(samples: dict[str, set[str]]) -> None:
    assert len(expressions()) > 50
    assert {e: wrong for e in expressions() if (wrong := wrong_in(e, samples))} == {}


def test_every_figure_that_is_told_is_documented_and_no_other(samples: dict[str, set[str]]) -> None:
    told = {re.sub(r"_(bucket|sum|count)$", "", name) if name.startswith(SPREAD) else name
            for name in samples}  # fmt: skip
    section = OPERATIONS.read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    documented = set(NAME.findall(section))
    assert {name for name in told if not name.endswith("_created")} == documented


#: Told as several samples each.
SPREAD = ("comfyfleet_http_request_seconds", "comfyfleet_job_submission_latency_seconds")


def test_alerts_say_what_is_wrong_and_where_to_look(samples: dict[str, set[str]]) -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 15
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "look"}, rule["alert"]
        labels = {one for name in NAME.findall(rule["expr"]) for one in samples[name]}
        shown = re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))
        assert set(shown) <= labels, rule["alert"]


def test_panels_stand_side_by_side_and_have_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize(
    "expression",
    ["comfyfleet_colour > 1", 'comfyfleet_queue_depth{flete="a"}',
     "sum by (tenant) (comfyfleet_queue_depth)"],
)  # fmt: skip
def test_a_figure_that_does_not_exist_is_found(
    samples: dict[str, set[str]], expression: str
) -> None:
    assert wrong_in(expression, samples)
    assert wrong_in('sum by (fleet) (comfyfleet_queue_depth{stage="dev"})', samples) == []
