"""What the system offers: effects, with the workflows behind them, and the demo's of both."""

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from models import audit, effects, fleets, payload, properties, workflows
from models.effects import Effect
from models.errors import InvalidInput, NotFound
from models.workflows import Workflow
from tasks import workflow_uploads
from tasks.backend import Backend


@dataclass(frozen=True)
class Seeded:
    workflows: int
    effects: int
    fleets: int


def seed_demo(backend: Backend) -> Seeded:
    """The demo workflows, effects and fleet. What is there already is left as it is."""
    folder = resources.files("models") / "demo"
    catalog = json.loads((folder / "catalog.json").read_text())
    for entry in catalog["workflows"]:
        graph = json.loads((folder / entry["graph"]).read_text())
        _seed_workflow(backend, entry | {"graph": graph})
    for entry in catalog["effects"]:
        _seed_effect(backend, entry)
    for entry in catalog["fleets"]:
        _seed_fleet(backend, entry)
    return Seeded(*(len(catalog[kind]) for kind in ("workflows", "effects", "fleets")))


def _seed_workflow(backend: Backend, entry: dict[str, Any]) -> None:
    """A recipe that is new with this release becomes a version; one that was replaced does not."""
    recipe = _recipe(entry)
    workflow_uploads.write(backend, recipe)  # the storage may be another one than the last time
    with backend.databases.central(read_only=True) as session:
        known = workflows.find(session, entry["slug"])
        if known and workflows.find_version(session, known, content_hash=recipe.content_hash):
            return
    put_workflow(backend, entry)


def _seed_effect(backend: Backend, entry: dict[str, Any]) -> None:
    with backend.databases.central(read_only=True) as session:
        is_there = effects.find(session, entry["slug"]) is not None
    if not is_there:
        put_effect(backend, entry)


def _seed_fleet(backend: Backend, entry: dict[str, Any]) -> None:
    stage = backend.settings.stage
    with backend.databases.central() as session:
        fleet = fleets.find(session, stage=stage, slug=entry["slug"]) or fleets.create(
            session,
            stage=stage,
            slug=entry["slug"],
            name=entry["name"],
            max_workers=entry["max_workers"],
        )
        for slug in entry["workflows"]:
            workflow = workflows.get(session, slug)
            if not fleets.mapped(session, stage=stage, workflow_ids=[workflow.id]):
                fleets.assign(session, fleet, workflow_id=workflow.id)


def put_workflow(backend: Backend, entry: dict[str, Any]) -> Workflow:
    """Ours: no list of nodes is asked, and nobody decided anything that had to be audited."""
    named = {name: entry[name] for name in ("slug", "name", "kind")}
    return workflow_uploads.put(backend, **named, recipe=_recipe(entry)).workflow


def _recipe(entry: dict[str, Any]) -> workflows.Recipe:
    return workflow_uploads.checked_recipe(
        entry["graph"], entry["properties"], entry["output_node_id"]
    )


def put_effect(backend: Backend, entry: dict[str, Any]) -> None:
    with backend.databases.central() as session:
        workflow = workflows.get(session, entry["workflow"])
        effects.put(
            session,
            slug=entry["slug"],
            name=entry["name"],
            description=entry["description"],
            workflow=workflow,
            credits_cost=entry["credits_cost"],
            overrides=_checked(workflow, entry["overrides"]),
        )
    backend.forget_catalog()


def create_effect(
    backend: Backend, *, slug: str, workflow: str, actor: str, **values: Any
) -> Effect:
    with backend.databases.central() as session:
        basis = _workflow(session, workflow)
        values["overrides"] = _checked(basis, values.get("overrides") or {})
        effect = effects.create(session, slug=slug, workflow_id=basis.id, **values)
        told = {name: getattr(effect, name) for name in ("credits_cost", "overrides", "provider")}
        audit.record(session, "effect.create", actor=actor, effect=slug, workflow=workflow, **told)
    _tell(backend)
    return effect


def change_effect(
    backend: Backend, slug: str, *, actor: str, workflow: str | None = None, **values: Any
) -> Effect:
    """Its overrides have to fit the workflow it has afterwards."""
    with backend.databases.central() as session:
        effect = effects.locked(session, slug)
        basis = _workflow(session, workflow) if workflow is not None else effect.workflow
        if workflow is not None:
            values["workflow_id"] = basis.id
        if workflow is not None or "overrides" in values:
            values["overrides"] = _checked(basis, values.get("overrides", effect.overrides))
        changes = effects.change(session, effect, **values)
        if "workflow_id" in changes:
            changes["workflow"] = [_slug_of(session, one) for one in changes.pop("workflow_id")]
        if changes:
            audit.record(session, "effect.change", actor=actor, effect=effect.slug, changed=changes)
    _tell(backend)
    return effect


def _checked(workflow: Workflow, overrides: dict[str, Any]) -> dict[str, Any]:
    known = properties.parse_properties(workflow.properties)
    fixed = payload.check_overrides(known, overrides)
    sentence = "A file belongs to one user, so it can't be the same for all."
    media = {p.name for p in known if p.is_media and p.name in fixed}
    properties.refuse_if(
        {f"overrides.{name}": [sentence] for name in media}, "The overrides can't be used."
    )
    return dict(fixed)


def _workflow(session: Session, slug: str) -> Workflow:
    try:
        return workflows.get(session, slug)
    except NotFound as missing:
        raise InvalidInput.field("workflow", missing.detail) from None


def _slug_of(session: Session, workflow_id: UUID) -> str:
    return session.get_one(Workflow, workflow_id).slug


def _tell(backend: Backend) -> None:
    backend.forget_catalog()
    backend.news.tell_operators()
