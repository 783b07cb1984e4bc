"""Put workflows, effects and fleets into the system: from the demo catalog, or a person's."""

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from models import effects, fleets, graphs, payload, properties, workflows
from models.object_paths import graph_key
from models.workflows import Recipe, Workflow
from tasks.backend import Backend


@dataclass(frozen=True)
class Seeded:
    workflows: int
    effects: int
    fleets: int


def seed_demo(backend: Backend) -> Seeded:
    """The demo workflows, effects and fleet. Repeating it changes nothing."""
    folder = resources.files("models") / "demo"
    catalog = json.loads((folder / "catalog.json").read_text())
    for entry in catalog["workflows"]:
        put_workflow(backend, entry | {"graph": json.loads((folder / entry["graph"]).read_text())})
    for entry in catalog["effects"]:
        put_effect(backend, entry)
    for entry in catalog["fleets"]:
        _put_fleet(backend, entry)
    return Seeded(*(len(catalog[kind]) for kind in ("workflows", "effects", "fleets")))


def put_workflow(backend: Backend, entry: dict[str, Any]) -> Workflow:
    """Check a workflow and store it. Its file first: a row must never point at nothing."""
    known = properties.parse_properties(entry["properties"])
    graphs.check_graph(entry["graph"], known, entry["output_node_id"])
    recipe = Recipe(
        graph=entry["graph"],
        output_node_id=entry["output_node_id"],
        properties=[prop.to_json() for prop in known],
    )
    backend.store.write(graph_key(recipe.content_hash), recipe.to_bytes(), "application/json")
    with backend.databases.central() as session:
        return workflows.put(
            session, slug=entry["slug"], name=entry["name"], kind=entry["kind"], recipe=recipe
        )


def put_effect(backend: Backend, entry: dict[str, Any]) -> None:
    with backend.databases.central() as session:
        workflow = workflows.get(session, entry["workflow"])
        known = properties.parse_properties(workflow.properties)
        effects.put(
            session,
            slug=entry["slug"],
            name=entry["name"],
            description=entry["description"],
            workflow=workflow,
            credits_cost=entry["credits_cost"],
            overrides=dict(payload.check_overrides(known, entry["overrides"])),
        )


def _put_fleet(backend: Backend, entry: dict[str, Any]) -> None:
    with backend.databases.central() as session:
        fleet = fleets.put(
            session,
            stage=backend.settings.stage,
            slug=entry["slug"],
            name=entry["name"],
            max_workers=entry["max_workers"],
        )
        for slug in entry["workflows"]:
            fleets.assign(session, fleet, workflow_id=workflows.get(session, slug).id)
