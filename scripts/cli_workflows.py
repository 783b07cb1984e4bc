"""`comfyfleet workflows …`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scripts.command import clear_errors, opened_backend, show, with_json
from scripts.table import table

if TYPE_CHECKING:
    from models.workflows import Workflow
    from tasks.backend import Backend

KINDS = ["image", "video", "audio", "text"]
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
HEADINGS = ["workflow", "name", "makes", "version", "on", "fleet", "effects"]
VERSION_HEADINGS = ["version", "in use", "uploaded (UTC)", "by", "content hash"]
PROPERTY_HEADINGS = ["property", "type", "placeholder", "required", "default"]


@click.group()
def workflows() -> None:
    """Workflows: ComfyUI graphs, and their versions."""


@workflows.command("list")
@with_json
@clear_errors
def list_workflows(as_json: bool) -> None:
    """List all workflows, the fleet that runs each in this stage, and the effects built on it.

    An effect that nobody can order has a `!`; `workflows show` and `effects list` say why.
    """
    from models.workflows import Workflow, everything
    from tasks.catalog_view import workflows_shown

    with opened_backend() as backend, backend.databases.central(read_only=True) as session:
        found = session.scalars(everything().order_by(Workflow.slug)).all()
        told = [one.told() for one in workflows_shown(backend, session, found)]
    show(as_json, told, table(HEADINGS, [_row(one) for one in told]))


def _row(told: dict[str, Any]) -> list[object]:
    effects = [f"{slug}!" if slug in told["problems"] else slug for slug in told["effects"]]
    plain = [told[name] for name in ("slug", "name", "kind", "version", "is_active", "fleet")]
    return [*plain, ", ".join(effects) or None]


@workflows.command("show")
@click.argument("slug")
@click.option("--version", type=int, help="Of this version; default: of the one in use.")
@click.option("--graph", "graph_only", is_flag=True, help="Print its graph only, for ComfyUI.")
@with_json
@clear_errors
def show_workflow(slug: str, version: int | None, graph_only: bool, as_json: bool) -> None:
    """Show the workflow SLUG: where it runs, what it asks for, and its graph."""
    from models import workflows as known
    from tasks import workflow_uploads
    from tasks.catalog_view import version_told, workflows_shown

    with opened_backend() as backend:
        with backend.databases.central(read_only=True) as session:
            workflow = known.get(session, slug)
            found = known.get_version(session, workflow, version=version)
            [shown] = workflows_shown(backend, session, [workflow])
        graph = workflow_uploads.recipe_of(backend, found).graph
    told = shown.told() | {"shown": version_told(workflow, found), "graph": graph}
    if graph_only:
        show(as_json=True, document=graph, sentences="")
    else:
        show(as_json, told, _description(told))


def _description(told: dict[str, Any]) -> list[str]:
    shown = told["shown"]
    rows = [
        [one["name"], one["type"], one["placeholder"], one["required"], one.get("default")]
        for one in shown["properties"]
    ]
    used = "in use" if shown["is_in_use"] else f"in use is {told['version']}"
    return [
        f"{told['slug']}: {told['name']}, makes {told['kind']}, {_on(told['is_active'])}",
        f"version {shown['version']} ({used}), {shown['content_hash']}",
        f"{len(told['graph'])} nodes; the result is that of {shown['output_node_id'] or 'all'}",
        f"fleet in this stage: {told['fleet'] or 'none'}",
        f"effects: {', '.join(told['effects']) or 'none'}",
        *(f"  {slug}: {problem}" for slug, problem in told["problems"].items()),
        "",
        table(PROPERTY_HEADINGS, rows),
    ]


def _on(is_active: bool) -> str:
    return "on" if is_active else "off: nobody can order it"


@workflows.command()
@click.argument("slug")
@with_json
@clear_errors
def versions(slug: str, as_json: bool) -> None:
    """List every version of SLUG that was ever uploaded."""
    from models import workflows as known
    from models.workflows import WorkflowVersion
    from tasks.catalog_view import version_told

    with opened_backend() as backend, backend.databases.central(read_only=True) as session:
        workflow = known.get(session, slug)
        newest = known.versions(workflow).order_by(WorkflowVersion.version.desc())
        told = [version_told(workflow, one) for one in session.scalars(newest)]
    columns = ("version", "is_in_use", "created_at", "created_by", "content_hash")
    rows = [[one[column] for column in columns] for one in told]
    show(as_json, told, table(VERSION_HEADINGS, rows))


@workflows.command()
@click.argument("file", type=FILE)
@click.option("--slug", help="Of the workflow, new or known. Required unless FILE has it.")
@click.option("--name", help="Default: the name it has, else the slug.")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="What it makes; required for a new one.",
)
@click.option("--output-node", help="Id of the node whose files are the result.")
@click.option("--properties", type=FILE, help="A JSON list; default: those it has.")
@with_json
@clear_errors
def upload(file: Path, properties: Path | None, as_json: bool, **options: str | None) -> None:
    """Upload the graph in FILE, which ComfyUI exported as API format. It is in use at once.

    FILE may also hold the whole body of `POST /api/admin/workflows`; options go before it. Of a
    workflow that is there already, what is not given stays as it is. Another recipe is
    another version; the same one again is the version it was.
    """
    from tasks import workflow_uploads

    given = _body(_json(file))
    given |= {name: value for name, value in _named(options).items() if value is not None}
    if properties is not None:
        given["properties"] = _json(properties)
    if "slug" not in given:
        raise click.UsageError("Say which workflow it is: --slug.")
    with opened_backend() as backend:
        whole = _defaults(backend, given["slug"]) | given
        if whole.get("kind") not in KINDS:
            raise click.UsageError("Say what the new workflow makes: --kind.")
        definitions = whole.pop("properties")
        done = workflow_uploads.upload(backend, definitions=definitions, actor="cli", **whole)
        what = "new" if done.is_new else "known before"
        sentence = f"{given['slug']} runs version {done.workflow.version} now ({what})."
        _tell(backend, done.workflow, as_json, sentence)


TEXTS = {"slug", "name", "kind", "output_node_id"}


def _body(document: Any) -> dict[str, Any]:
    is_whole = isinstance(document, dict) and isinstance(document.get("graph"), dict)
    if not is_whole or "class_type" in document["graph"]:
        return {"graph": document}
    if unknown := document.keys() - TEXTS - {"graph", "properties"}:
        raise click.UsageError(f"The file has fields that mean nothing: {', '.join(unknown)}.")
    given = {name: value for name, value in document.items() if value is not None}
    if wrong := [name for name in sorted(TEXTS & given.keys()) if not isinstance(given[name], str)]:
        raise click.UsageError(f"In the file these have to be texts: {', '.join(wrong)}.")
    return given


def _named(options: dict[str, str | None]) -> dict[str, str | None]:
    return options | {"output_node_id": options.pop("output_node")}


def _defaults(backend: "Backend", slug: str) -> dict[str, Any]:
    from models import workflows as known

    with backend.databases.central(read_only=True) as session:
        workflow = known.find(session, slug)
    if workflow is None:
        return {"name": slug, "output_node_id": None, "properties": []}
    names = ("name", "kind", "output_node_id", "properties")
    return {name: getattr(workflow, name) for name in names}


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(), parse_constant=_refuse_constant)
    except (OSError, RecursionError, ValueError) as error:
        raise click.UsageError(f"{file} can't be read as JSON: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}.")


@workflows.command()
@click.argument("slug")
@click.argument("version")
@with_json
@clear_errors
def activate(slug: str, version: str, as_json: bool) -> None:
    """Run VERSION of SLUG from now on: its number, or its content hash.

    What was ordered before runs what it was ordered with.
    """
    from tasks import workflow_uploads

    is_number = version.isdecimal() and len(version) < 10
    wanted: dict[str, Any] = {"version": int(version)} if is_number else {"content_hash": version}
    with opened_backend() as backend:
        workflow = workflow_uploads.change(backend, slug, actor="cli", **wanted)
        _tell(backend, workflow, as_json, f"{slug} runs version {workflow.version} now.")


@workflows.command()
@click.argument("slug")
@with_json
@clear_errors
def on(slug: str, as_json: bool) -> None:
    """Switch the workflow SLUG on."""
    _switch(slug, as_json, is_active=True)


@workflows.command()
@click.argument("slug")
@with_json
@clear_errors
def off(slug: str, as_json: bool) -> None:
    """Switch the workflow SLUG off: nothing of it can be ordered. What is ordered still runs."""
    _switch(slug, as_json, is_active=False)


def _switch(slug: str, as_json: bool, *, is_active: bool) -> None:
    from tasks import workflow_uploads

    with opened_backend() as backend:
        workflow = workflow_uploads.change(backend, slug, is_active=is_active, actor="cli")
        _tell(backend, workflow, as_json, f"{slug} is {_on(is_active)}.")


def _tell(backend: "Backend", workflow: "Workflow", as_json: bool, sentence: str) -> None:
    from tasks.catalog_view import workflows_shown

    with backend.databases.central(read_only=True) as session:
        [shown] = workflows_shown(backend, session, [workflow])
    told = shown.told()
    problems = [f"  {slug}: {problem}" for slug, problem in told["problems"].items()]
    show(as_json, told, [sentence, *problems])
