"""Workflows are uploaded as versions that stay; what was ordered runs what was ordered."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from models import fleets, workflows
from models.audit import AuditLog
from models.errors import DependencyUnavailable, InvalidInput, NotFound, NotPossibleNow
from models.object_paths import graph_key
from models.workflows import Recipe, Uploaded, Workflow, WorkflowVersion
from tasks import catalog, fleet_setup, workflow_uploads
from tasks.backend import Backend
from tests.fixtures import MakePerson
from tests.tasks import gpu, orders

ACTOR = "user:somebody"
WIDTH = {"name": "width", "type": "integer", "default": 8}


def graph(colour: int = 0) -> dict[str, Any]:
    return {
        "1": {"class_type": "EmptyImage", "inputs": {"width": "{{width}}", "color": colour}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }


def upload(backend: Backend, colour: int = 0, slug: str = "card", **given: Any) -> Uploaded:
    usual: dict[str, Any] = {
        "name": "Card",
        "kind": "image",
        "graph": graph(colour),
        "definitions": [WIDTH],
        "output_node_id": "2",
        "actor": ACTOR,
    }
    return workflow_uploads.upload(backend, slug=slug, **usual | given)


def versions(backend: Backend, slug: str = "card") -> list[tuple[int, str]]:
    with backend.databases.central(read_only=True) as session:
        found = session.scalars(
            workflows.versions(workflows.get(session, slug)).order_by(WorkflowVersion.version)
        )
        return [(one.version, one.content_hash) for one in found]


def in_use(backend: Backend, slug: str = "card") -> int:
    with backend.databases.central(read_only=True) as session:
        return workflows.get(session, slug).version


def audited(backend: Backend) -> list[tuple[str, dict[str, Any]]]:
    with backend.databases.central(read_only=True) as session:
        rows = session.scalars(select(AuditLog).order_by(AuditLog.at)).all()
        assert {row.actor for row in rows} <= {ACTOR}
        return [(row.event, row.details) for row in rows]


def stored(backend: Backend, content_hash: str) -> Recipe:
    return Recipe.from_bytes(backend.store.read(graph_key(content_hash)))


def test_each_other_recipe_is_a_version_of_its_own(backend: Backend) -> None:
    for number, colour in enumerate((1, 2, 3), start=1):
        uploaded = upload(backend, colour)
        assert (uploaded.is_new, uploaded.workflow.version) == (True, number)
    kept = versions(backend)
    assert [number for number, _ in kept] == [1, 2, 3]
    for (_, content_hash), colour in zip(kept, (1, 2, 3), strict=True):
        assert stored(backend, content_hash).graph == graph(colour)
    assert [event for event, _ in audited(backend)] == ["workflow.upload"] * 3


def test_the_same_upload_again_is_the_same_version(backend: Backend) -> None:
    first = upload(backend)
    again = upload(backend)
    assert (again.is_new, again.workflow.version, again.changes) == (False, 1, {})
    assert again.workflow.content_hash == first.workflow.content_hash
    assert len(versions(backend)) == len(audited(backend)) == 1


def test_an_older_recipe_uploaded_again_is_in_use_again(backend: Backend) -> None:
    upload(backend, 1)
    upload(backend, 2)
    again = upload(backend, 1, name="Card again")
    assert (again.is_new, again.workflow.version) == (False, 1)
    assert again.changes == {"version": [2, 1], "name": ["Card", "Card again"]}
    assert len(versions(backend)) == 2
    assert upload(backend, 3).workflow.version == 3  # numbers are never given twice


def test_an_older_version_is_activated_by_number_or_by_hash(backend: Backend) -> None:
    upload(backend, 1)
    upload(backend, 2)
    [(_, first), (_, second)] = versions(backend)
    changed = workflow_uploads.change(backend, "card", version=1, actor=ACTOR)
    assert (changed.version, changed.content_hash) == (1, first)
    changed = workflow_uploads.change(backend, "card", content_hash=second, actor=ACTOR)
    assert (changed.version, changed.content_hash) == (2, second)
    events = audited(backend)[2:]
    assert events == [
        ("workflow.change", {"workflow": "card", "changed": {"version": [2, 1]}}),
        ("workflow.change", {"workflow": "card", "changed": {"version": [1, 2]}}),
    ]


def test_a_change_that_changes_nothing_is_not_audited(backend: Backend) -> None:
    upload(backend)
    workflow_uploads.change(backend, "card", version=1, name="Card", is_active=True, actor=ACTOR)
    assert len(audited(backend)) == 1


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"version": 2}, "version"),
        ({"content_hash": "0" * 64}, "content_hash"),
        ({"version": 1, "content_hash": "0" * 64}, "version"),
    ],
)
def test_a_version_that_never_was_is_refused(
    backend: Backend, wanted: dict[str, Any], field: str
) -> None:
    upload(backend)
    with pytest.raises(InvalidInput) as refused:
        workflow_uploads.change(backend, "card", **wanted, name="Other", actor=ACTOR)
    assert [*(refused.value.errors or {})] == [field]
    with backend.databases.central(read_only=True) as session:
        assert workflows.get(session, "card").name == "Card"


def test_a_version_whose_graph_is_gone_is_not_activated(backend: Backend) -> None:
    upload(backend, 1)
    upload(backend, 2)
    [(_, first), _] = versions(backend)
    backend.store.delete(graph_key(first))
    with pytest.raises(NotPossibleNow):
        workflow_uploads.change(backend, "card", version=1, actor=ACTOR)
    assert in_use(backend) == 2
    upload(backend, 1)  # brings it back
    assert stored(backend, first).graph == graph(1)


def test_what_does_not_exist_can_not_be_changed(backend: Backend) -> None:
    for wanted in ({"version": 1}, {"is_active": False}):
        with pytest.raises(NotFound):
            workflow_uploads.change(backend, "nothing", **wanted, actor=ACTOR)


def test_a_workflow_keeps_its_kind(backend: Backend) -> None:
    upload(backend, 1)
    with pytest.raises(InvalidInput) as refused:
        upload(backend, 2, kind="video")
    assert [*(refused.value.errors or {})] == ["kind"]
    assert len(versions(backend)) == 1


@pytest.mark.parametrize("slug", ["", "Card", "../card", "deadbeefdeadbeefdeadbeefdeadbeef"])
def test_a_bad_name_is_refused_before_anything_is_stored(backend: Backend, slug: str) -> None:
    with pytest.raises(InvalidInput):
        upload(backend, slug=slug)
    assert not list(Path(backend.settings.storage_url.removeprefix("file://")).rglob("*.json"))


def test_a_node_that_is_not_on_the_list_is_refused_unless_all_are_allowed(
    backend: Backend,
) -> None:
    evil = graph() | {"3": {"class_type": "RunShell", "inputs": {}}}
    with pytest.raises(InvalidInput) as refused:
        upload(backend, graph=evil)
    assert [*(refused.value.errors or {})] == ["graph.3.class_type"]
    for words in ("core, RunShell", "core, Run*", "*"):
        generous = replace(backend, settings=replace(backend.settings, allowed_nodes=words))
        upload(generous, graph=evil)


# What was ordered


def test_a_job_runs_the_recipe_it_was_ordered_with(backend: Backend, person: MakePerson) -> None:
    ada = person(tokens=10)
    upload(backend, 1)
    sell(backend)
    orders.order(backend, ada, effect="card")
    upload(backend, 2)
    orders.order(backend, ada, effect="card")
    workflow_uploads.change(backend, "card", version=1, actor=ACTOR)
    orders.order(backend, ada, effect="card")

    worker = gpu.join(backend, fleet_slug="cards")
    colours = []
    for _ in range(3):
        leased = gpu.poll(backend, worker)
        assert leased is not None
        colours.append(leased.graph["1"]["inputs"]["color"])
    assert colours == [1, 2, 1]


def sell(backend: Backend) -> None:
    catalog.create_effect(
        backend, slug="card", name="Card", workflow="card", credits_cost=1, actor=ACTOR
    )
    stage = backend.settings.stage
    fleet_setup.create(backend, stage=stage, slug="cards", actor=ACTOR)
    fleet_setup.run_workflows(backend, stage=stage, slug="cards", wanted=["card"], actor=ACTOR)


def test_what_has_changed_is_sold_at_once_by_the_process_that_changed_it(
    backend: Backend, person: MakePerson
) -> None:
    remembering = Backend.open(replace(backend.settings, catalog_seconds=3600))
    ada = person(tokens=10)
    upload(remembering, 1)
    sell(remembering)
    for colour in (2, 3):
        upload(remembering, colour)
        job = orders.order(remembering, ada, effect="card")
        with backend.databases.central(read_only=True) as session:
            workflow = workflows.get(session, "card")
        assert job.input_payload["content_hash"] == workflow.content_hash
    remembering.close()


# Crashes, outages, races


def test_a_crash_between_storage_and_row_leaves_nothing_but_a_file(backend: Backend) -> None:
    recipe = workflow_uploads.checked_recipe(graph(), [WIDTH], "2")
    workflow_uploads.write(backend, recipe)  # and here it dies
    with backend.databases.central(read_only=True) as session:
        assert workflows.find(session, "card") is None
    uploaded = upload(backend)
    assert (uploaded.is_new, uploaded.workflow.content_hash) == (True, recipe.content_hash)


def test_without_storage_there_is_no_version(backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir(exist_ok=True)
    (tmp_path / "objects" / "workflows").write_text("in the way")
    with pytest.raises(DependencyUnavailable):
        upload(backend)
    with backend.databases.central(read_only=True) as session:
        assert workflows.find(session, "card") is None
    (tmp_path / "objects" / "workflows").unlink()
    assert upload(backend).is_new


def at_once(*steps: Callable[[], Uploaded]) -> list[Uploaded]:
    with ThreadPoolExecutor(len(steps)) as pool:
        return [done.result(timeout=60) for done in [pool.submit(step) for step in steps]]


def test_the_same_upload_from_many_at_once_is_one_version(backend: Backend) -> None:
    done = at_once(*[lambda: upload(backend)] * 8)
    assert sorted(one.is_new for one in done) == [False] * 7 + [True]
    assert [number for number, _ in versions(backend)] == [1]
    assert len(audited(backend)) == 1


def test_different_uploads_at_once_are_numbered_without_gaps(backend: Backend) -> None:
    done = at_once(*[lambda c=colour: upload(backend, c) for colour in range(8)])
    assert all(one.is_new for one in done)
    kept = versions(backend)
    assert [number for number, _ in kept] == list(range(1, 9))
    with backend.databases.central(read_only=True) as session:
        workflow = workflows.get(session, "card")
    assert dict(kept)[workflow.version] == workflow.content_hash
    assert sorted(details["version"] for _, details in audited(backend)) == list(range(1, 9))


def test_the_application_can_not_change_or_remove_a_version(postgres: Backend) -> None:
    upload(postgres)
    for sentence in ("UPDATE workflow_versions SET version = 9", "DELETE FROM workflow_versions"):
        with (
            pytest.raises(Exception, match="permission denied"),
            postgres.databases.central() as session,
        ):
            session.connection().exec_driver_sql(sentence)


# The demo


def test_seeding_again_leaves_what_was_changed_as_it_is(backend: Backend) -> None:
    catalog.seed_demo(backend)
    stage = backend.settings.stage
    other = graph(7)
    upload(backend, slug="colour-card", graph=other, definitions=[WIDTH])
    catalog.change_effect(backend, "image-blur", credits_cost=99, actor=ACTOR)
    fleet_setup.change(backend, stage=stage, slug="gpu-default", max_workers=3, actor=ACTOR)
    fleet_setup.create(backend, stage=stage, slug="other", actor=ACTOR)
    wanted = ["image-blur"]
    fleet_setup.run_workflows(backend, stage=stage, slug="other", wanted=wanted, actor=ACTOR)

    catalog.seed_demo(backend)
    assert in_use(backend, "colour-card") == 2
    with backend.databases.central(read_only=True) as session:
        fleet = fleets.get(session, stage=stage, slug="gpu-default")
        blur = workflows.get(session, "image-blur")
        assert fleet.max_workers == 3
        assert fleets.serving(session, workflow_id=blur.id, stage=stage).slug == "other"
        assert session.scalar(select(func.count()).select_from(Workflow)) == 7


def test_seeding_brings_the_graphs_to_another_storage(backend: Backend, tmp_path: Path) -> None:
    catalog.seed_demo(backend)
    moved = replace(backend.settings, storage_url=f"file://{tmp_path}/elsewhere")
    other = Backend.open(moved)
    catalog.seed_demo(other)
    assert len(list((tmp_path / "elsewhere" / "workflows").iterdir())) == 7
    other.close()
