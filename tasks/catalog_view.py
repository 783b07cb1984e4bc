"""The catalog as administrators see it: what runs where, and what can't be ordered, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import fleets, payload, workers
from models.effects import Effect
from models.errors import InvalidInput
from models.fleets import Fleet
from models.workflows import Workflow, WorkflowVersion
from tasks.backend import Backend
from tasks.submission import properties_of
from tasks.worker_list import gone_before


@dataclass(frozen=True)
class ShownEffect:
    effect: Effect
    problem: str | None  # why nobody can order it

    def told(self) -> dict[str, Any]:
        """As API and command line tell it; likewise the others."""
        effect = self.effect
        return offered(effect) | {
            "workflow": effect.workflow.slug,
            "overrides": effect.overrides,
            "provider": effect.provider,
            "is_active": effect.is_active,
            "problem": self.problem,
            "created_at": effect.created_at,
        }


@dataclass(frozen=True)
class ShownWorkflow:
    workflow: Workflow
    fleet: str | None  # that runs it in this stage
    effects: list[ShownEffect] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        workflow = self.workflow
        return {
            "id": workflow.id,
            "slug": workflow.slug,
            "name": workflow.name,
            "kind": workflow.kind,
            "version": workflow.version,
            "content_hash": workflow.content_hash,
            "output_node_id": workflow.output_node_id,
            "properties": workflow.properties,
            "is_active": workflow.is_active,
            "fleet": self.fleet,
            "effects": [one.effect.slug for one in self.effects],
            "problems": {one.effect.slug: one.problem for one in self.effects if one.problem},
            "created_at": workflow.created_at,
            "updated_at": workflow.updated_at,
        }


@dataclass(frozen=True)
class ShownFleet:
    fleet: Fleet
    workflows: list[str]
    workers_present: int

    def told(self) -> dict[str, Any]:
        fleet = self.fleet
        return {
            "id": fleet.id,
            "slug": fleet.slug,
            "stage": fleet.stage,
            "name": fleet.name,
            "max_workers": fleet.max_workers,
            "bundle": fleet.bundle,
            "is_active": fleet.is_active,
            "workflows": self.workflows,
            "workers_present": self.workers_present,
            "created_at": fleet.created_at,
        }


def offered(effect: Effect) -> dict[str, Any]:
    """An effect as users see it."""
    known = properties_of(effect.workflow)
    return {
        "id": effect.id,
        "slug": effect.slug,
        "name": effect.name,
        "description": effect.description,
        "kind": effect.workflow.kind,
        "credits_cost": effect.credits_cost,
        "inputs": payload.public_inputs(known, effect.overrides),
        "needs_media": payload.primary_media(known, effect.overrides) is not None,
        "estimated_seconds": effect.last_processing_time_seconds,
    }


def version_told(workflow: Workflow, version: WorkflowVersion) -> dict[str, Any]:
    return {
        "version": version.version,
        "content_hash": version.content_hash,
        "output_node_id": version.output_node_id,
        "properties": version.properties,
        "is_in_use": version.version == workflow.version,
        "created_by": version.created_by,
        "created_at": version.created_at,
    }


def effects_shown(backend: Backend, session: Session, found: Sequence[Effect]) -> list[ShownEffect]:
    stage = backend.settings.stage
    homes = fleets.mapped(session, stage=stage, workflow_ids={one.workflow_id for one in found})
    return [ShownEffect(one, _problem(one, homes.get(one.workflow_id), stage)) for one in found]


def workflows_shown(
    backend: Backend, session: Session, found: Sequence[Workflow]
) -> list[ShownWorkflow]:
    ids = {one.id for one in found}
    homes = fleets.mapped(session, stage=backend.settings.stage, workflow_ids=ids)
    sold = select(Effect).where(Effect.workflow_id.in_(ids)).order_by(Effect.slug)
    by_workflow: dict[UUID, list[ShownEffect]] = {}
    for shown in effects_shown(backend, session, session.scalars(sold).unique().all()):
        by_workflow.setdefault(shown.effect.workflow_id, []).append(shown)
    return [
        ShownWorkflow(
            one,
            homes[one.id].slug if one.id in homes else None,
            by_workflow.get(one.id, []),
        )
        for one in found
    ]


def fleets_shown(backend: Backend, session: Session, found: Sequence[Fleet]) -> list[ShownFleet]:
    limit = gone_before(backend)
    named = fleets.workflows_of(session, [one.id for one in found])
    return [
        ShownFleet(
            one,
            [slug for _, slug in named[one.id]],
            workers.count_present(session, fleet_id=one.id, gone_before=limit),
        )
        for one in found
    ]


def _problem(effect: Effect, fleet: Fleet | None, stage: str) -> str | None:
    if not effect.is_active:
        return "It is switched off."
    if not effect.workflow.is_active:
        return f"Its workflow {effect.workflow.slug!r} is switched off."
    if fleet is None:
        return f"No fleet runs its workflow {effect.workflow.slug!r} in stage {stage!r}."
    if not fleet.is_active:
        return f"Its fleet {fleet.slug!r} is switched off."
    try:
        payload.check_overrides(properties_of(effect.workflow), effect.overrides)
    except InvalidInput as misfit:
        where, sentences = next(iter((misfit.errors or {"overrides": [misfit.detail]}).items()))
        return f"It no longer fits its workflow. {where}: {sentences[0]}"
    return None
