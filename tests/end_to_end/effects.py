"""Effects beside those of the demo, for what a workflow may make: several files, other types."""

import json

from models import fleets, workflows
from scripts.stack import FLEET
from tasks import catalog
from tasks.backend import Backend

#: What the one node of each effect says it made. The folder is the job's own.
MADE = {
    "three-files": {
        "images": [
            {"filename": "front.png", "subfolder": "{{output_prefix}}"},
            {"filename": "back.webp", "subfolder": "{{output_prefix}}"},
        ],
        "text": ["A card with two sides."],
    },
    "another-type": {"audio": [{"filename": "sound.mp3", "subfolder": "{{output_prefix}}"}]},
}


def seed(backend: Backend) -> None:
    for slug, made in MADE.items():
        catalog.put_workflow(backend, _workflow(slug, made))
        catalog.put_effect(backend, _effect(slug))
        with backend.databases.central() as session:
            fleet = fleets.get(session, stage=backend.settings.stage, slug=FLEET)
            fleets.assign(session, fleet, workflow_id=workflows.get(session, slug).id)


def _workflow(slug: str, made: dict[str, object]) -> dict[str, object]:
    node = {"class_type": "EmitOutputs", "inputs": {"ui": json.dumps(made)}}
    named = {"slug": slug, "name": slug, "kind": "image"}
    return named | {"graph": {"1": node}, "output_node_id": "1", "properties": []}


def _effect(slug: str) -> dict[str, object]:
    priced = {"slug": slug, "name": slug, "description": slug, "credits_cost": 2}
    return priced | {"workflow": slug, "overrides": {}}
