"""Workflows as administrators bring and change them.

A recipe is checked, then written to object storage, then it becomes a version. A crash in between
leaves a file that no row names; the same upload again writes the same file and makes the row.
"""

from typing import Any, Unpack

from models import audit, graphs, properties, slugs, workflows
from models.errors import InvalidInput, NotFound, NotPossibleNow
from models.node_types import NodeList
from models.object_paths import graph_key
from models.workflows import Recipe, Uploaded, Workflow, WorkflowChange, WorkflowVersion
from tasks.backend import Backend

GONE = "Its graph is gone from storage. Upload it again."


def upload(
    backend: Backend,
    *,
    slug: str,
    name: str,
    kind: str,
    graph: Any,
    definitions: Any,
    output_node_id: str | None = None,
    actor: str,
) -> Uploaded:
    """From now on the workflow runs this. A recipe that was there before is the version it was."""
    slugs.check(slug)
    slugs.check_name(name)
    allowed = NodeList(backend.settings.allowed_nodes)
    recipe = checked_recipe(graph, definitions, output_node_id, allowed_nodes=allowed)
    return put(backend, slug=slug, name=name, kind=kind, recipe=recipe, actor=actor)


def checked_recipe(
    graph: Any,
    definitions: Any,
    output_node_id: str | None,
    *,
    allowed_nodes: NodeList | None = None,
) -> Recipe:
    known = properties.parse_properties(definitions)
    graphs.check_graph(graph, known, output_node_id, allowed_nodes=allowed_nodes)
    return Recipe(
        graph=graph,
        output_node_id=output_node_id,
        properties=[prop.to_json() for prop in known],
    )


def put(
    backend: Backend, *, slug: str, name: str, kind: str, recipe: Recipe, actor: str | None = None
) -> Uploaded:
    """The file first: a row must never point at nothing. Without an actor it is the demo's."""
    write(backend, recipe)
    with backend.databases.central() as session:
        uploaded = workflows.upload(
            session, slug=slug, name=name, kind=kind, recipe=recipe, created_by=actor
        )
        if actor is not None and (uploaded.is_new or uploaded.changes):
            audit.record(
                session,
                "workflow.upload",
                actor=actor,
                workflow=slug,
                version=uploaded.workflow.version,
                content_hash=recipe.content_hash,
                is_new=uploaded.is_new,
                changed=uploaded.changes,
            )
    _tell(backend)
    return uploaded


def write(backend: Backend, recipe: Recipe) -> None:
    backend.store.write(graph_key(recipe.content_hash), recipe.to_bytes(), "application/json")


def change(
    backend: Backend,
    slug: str,
    *,
    actor: str,
    version: int | None = None,
    content_hash: str | None = None,
    **values: Unpack[WorkflowChange],
) -> Workflow:
    """Use another version of it, switch it on or off, give it another name."""
    wanted = None
    if version is not None or content_hash is not None:
        wanted = _usable(backend, slug, version, content_hash)
    with backend.databases.central() as session:
        workflow = workflows.get(session, slug, lock=True)
        changes = workflows.change(session, workflow, **values)
        if wanted is not None:
            changes |= workflows.use(session, workflow, wanted)
        if changes:
            audit.record(session, "workflow.change", actor=actor, workflow=slug, changed=changes)
    _tell(backend)
    return workflow


def _usable(
    backend: Backend, slug: str, version: int | None, content_hash: str | None
) -> WorkflowVersion:
    """A version never changes, so it may be looked at before the workflow is locked."""
    with backend.databases.central(read_only=True) as session:
        workflow = workflows.get(session, slug)
        try:
            found = workflows.get_version(
                session, workflow, version=version, content_hash=content_hash
            )
        except NotFound as missing:
            field = "version" if version is not None else "content_hash"
            raise InvalidInput.field(field, missing.detail) from None
    if backend.store.head(graph_key(found.content_hash)) is None:
        raise NotPossibleNow(GONE)
    return found


def recipe_of(backend: Backend, version: WorkflowVersion) -> Recipe:
    try:
        return Recipe.from_bytes(backend.store.read(graph_key(version.content_hash)))
    except NotFound:
        raise NotPossibleNow(GONE) from None


def _tell(backend: Backend) -> None:
    backend.forget_catalog()
    backend.news.tell_operators()
