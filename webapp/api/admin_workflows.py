"""For administrators: workflows and their versions."""

from typing import Any

from marshmallow import Schema, fields, validate

from models import graphs, properties, slugs, workflows
from models.workflows import Kind, Workflow, WorkflowVersion
from tasks import workflow_uploads
from tasks.catalog_view import version_told, workflows_shown
from webapp.api.admin import actor
from webapp.auth import let_admins_in
from webapp.context import backend
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of
from webapp.shapes import Time

blueprint = let_admins_in(
    ApiBlueprint(
        "admin-workflows", __name__, url_prefix="/api/admin/workflows", description=__doc__
    )
)

SLUG = [validate.Length(1, slugs.MAX_LENGTH), validate.Regexp(slugs.PATTERN)]
NAME = validate.Length(1, slugs.NAME_MAX_LENGTH)
EXAMPLE_GRAPH = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "{{image}}"}},
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {
        "class_type": "SaveImage",
        "inputs": {"images": ["2", 0], "filename_prefix": "{{output_prefix}}"},
    },
}


class WorkflowUploadSchema(Schema):
    """A graph that breaks a rule is refused with all its faults by node and input."""

    slug = fields.String(required=True, validate=SLUG, metadata={"example": "image-invert"})
    name = fields.String(required=True, validate=NAME, metadata={"example": "Invert an image"})
    kind = fields.String(
        required=True,
        validate=validate.OneOf([*Kind]),
        metadata={"example": "image", "description": "What it makes. Stays so."},
    )
    graph = fields.Dict(
        required=True,
        metadata={"example": EXAMPLE_GRAPH, "description": "ComfyUI's API format."},
    )
    output_node_id = fields.String(
        load_default=None,
        validate=validate.Length(1, graphs.NAME_MAX_CHARACTERS),
        metadata={"description": "Whose files are the result; none: of all nodes that make any."},
    )
    properties = fields.List(
        fields.Dict(),
        load_default=list,
        validate=validate.Length(max=properties.PROPERTIES_MAX),
        metadata={
            "example": [{"name": "image", "type": "image", "placeholder": "{{image}}"}],
            "description": "As an effect's `inputs`, and the `placeholder` they have in the graph.",
        },
    )


class WorkflowChangeSchema(Schema):
    name = fields.String(validate=NAME)
    is_active = fields.Boolean(metadata={"description": "Off: nothing of it can be ordered."})
    version = fields.Integer(
        strict=True,
        validate=validate.Range(1, 2**31 - 1),
        metadata={"description": "The version to run from now on."},
    )
    content_hash = fields.String(
        validate=validate.Regexp(r"^[0-9a-f]{64}$(?!\n)"),
        metadata={"description": "The same, named by its content."},
    )


class VersionQuery(Schema):
    version = fields.Integer(
        load_default=None,
        validate=validate.Range(1, 2**31 - 1),
        metadata={"description": "Whose graph to show; default: that of the version in use."},
    )


class WorkflowSchema(Schema):
    id = fields.UUID(required=True)
    slug = fields.String(required=True)
    name = fields.String(required=True)
    kind = fields.String(required=True, validate=validate.OneOf([*Kind]))
    version = fields.Integer(required=True, metadata={"description": "The one in use."})
    content_hash = fields.String(required=True)
    output_node_id = fields.String(required=True, allow_none=True)
    properties = fields.List(fields.Dict(), required=True)
    is_active = fields.Boolean(required=True)
    fleet = fields.String(
        required=True, allow_none=True, metadata={"description": "That runs it in this stage."}
    )
    effects = fields.List(
        fields.String(), required=True, metadata={"description": "Slugs of those built on it."}
    )
    problems = fields.Dict(
        keys=fields.String(),
        values=fields.String(),
        required=True,
        metadata={"description": "Why effects of it can't be ordered, by their slugs."},
    )
    created_at = Time(required=True)
    updated_at = Time(required=True)


class WorkflowVersionSchema(Schema):
    version = fields.Integer(required=True)
    content_hash = fields.String(required=True)
    output_node_id = fields.String(required=True, allow_none=True)
    properties = fields.List(fields.Dict(), required=True)
    is_in_use = fields.Boolean(required=True)
    created_by = fields.String(required=True, allow_none=True)
    created_at = Time(required=True)


class WholeWorkflowSchema(WorkflowSchema):
    shown = fields.Nested(WorkflowVersionSchema, required=True)
    graph = fields.Dict(required=True, metadata={"description": "Of the version shown."})


def _shape(workflow: Workflow) -> dict[str, Any]:
    with backend().databases.central(read_only=True) as session:
        [shown] = workflows_shown(backend(), session, [workflow])
    return shown.told()


@blueprint.post("")
@blueprint.arguments(WorkflowUploadSchema)
@blueprint.response(201, WorkflowSchema, description="A new version, in use from now on.")
@blueprint.alt_response(
    200, schema=WorkflowSchema, description="Was uploaded before; that version is in use now."
)
def upload_workflow(new: dict[str, Any]) -> Any:
    """Upload a workflow, or another version of one"""
    definitions = new.pop("properties")
    uploaded = workflow_uploads.upload(backend(), actor=actor(), definitions=definitions, **new)
    return _shape(uploaded.workflow), 201 if uploaded.is_new else 200


@blueprint.get("")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, page_of(WorkflowSchema))
def list_workflows(query: dict[str, Any]) -> dict[str, Any]:
    """All workflows"""
    with backend().databases.central(read_only=True) as session:
        found, cursor = page(
            session,
            workflows.everything(),
            newest=(Workflow.created_at, Workflow.id),
            scope="admin-workflows",
            **query,
        )
        shown = workflows_shown(backend(), session, found)
    return {"items": [one.told() for one in shown], "next_cursor": cursor}


@blueprint.get("/<string:slug>")
@blueprint.arguments(VersionQuery, location="query")
@blueprint.response(200, WholeWorkflowSchema)
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
def show_workflow(query: dict[str, Any], slug: str) -> dict[str, Any]:
    """One workflow, with the graph of the version in use or of another one"""
    with backend().databases.central(read_only=True) as session:
        workflow = workflows.get(session, slug)
        version = workflows.get_version(session, workflow, **query)
    recipe = workflow_uploads.recipe_of(backend(), version)
    told = {"shown": version_told(workflow, version), "graph": recipe.graph}
    return _shape(workflow) | told


@blueprint.get("/<string:slug>/versions")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, page_of(WorkflowVersionSchema))
@blueprint.alt_response(404, "NOT_FOUND")
def list_versions(query: dict[str, Any], slug: str) -> dict[str, Any]:
    """Every version that was ever uploaded"""
    with backend().databases.central(read_only=True) as session:
        workflow = workflows.get(session, slug)
        found, cursor = page(
            session,
            workflows.versions(workflow),
            newest=(WorkflowVersion.created_at, WorkflowVersion.id),
            scope=f"versions {slug}",
            **query,
        )
    items = [version_told(workflow, version) for version in found]
    return {"items": items, "next_cursor": cursor}


@blueprint.patch("/<string:slug>")
@blueprint.arguments(WorkflowChangeSchema)
@blueprint.response(200, WorkflowSchema)
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
def change_workflow(given: dict[str, Any], slug: str) -> dict[str, Any]:
    """Run another version from now on, switch it on or off, give it another name"""
    return _shape(workflow_uploads.change(backend(), slug, actor=actor(), **given))
