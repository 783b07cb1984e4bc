"""Uploading workflows over HTTP: what is accepted, what is refused and how, and what is shown."""

import json
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from models.audit import AuditLog
from models.object_paths import graph_key
from models.users import Role
from tests.webapp.calls import Caller, Json, MakeCaller, answered, is_utc, nothing_written, refused

ADDRESS = "/api/admin/workflows"
GRAPH = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "{{image}}"}},
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
}
IMAGE = {"name": "image", "type": "image", "placeholder": "{{image}}"}


@pytest.fixture
def admin(caller: MakeCaller) -> Caller:
    return caller(role=Role.ADMIN)


def body(**given: Any) -> Json:
    usual = {"slug": f"w-{uuid4().hex[:12]}", "name": "Invert", "kind": "image", "graph": GRAPH}
    return usual | {"output_node_id": "3", "properties": [IMAGE]} | given


def with_node(number: str, node: Any) -> Json:
    return GRAPH | {number: node}


def changed(admin: Caller, slug: str, **given: Any) -> Any:
    return admin.call("PATCH", f"{ADDRESS}/{slug}", json=given)


def events(admin: Caller) -> list[tuple[str, Json]]:
    with admin.backend.databases.central(read_only=True) as session:
        mine = AuditLog.actor == f"user:{admin.person.user_id}"
        rows = session.scalars(select(AuditLog).where(mine).order_by(AuditLog.at))
        return [(row.event, without_trace(row.details)) for row in rows]


def without_trace(details: Json) -> Json:
    return {name: value for name, value in details.items() if name != "trace_id"}


def test_a_workflow_is_uploaded_and_shown(admin: Caller) -> None:
    new = body()
    made = answered(admin.post(ADDRESS, json=new), 201)
    assert (made["slug"], made["name"], made["kind"]) == (new["slug"], "Invert", "image")
    assert (made["version"], made["is_active"], made["output_node_id"]) == (1, True, "3")
    assert made["properties"] == [IMAGE | {"required": True}]
    assert len(made["content_hash"]) == 64
    assert (made["fleet"], made["effects"], made["problems"]) == (None, [], {})
    assert is_utc(made["created_at"])
    assert is_utc(made["updated_at"])

    shown = answered(admin.get(f"{ADDRESS}/{new['slug']}"))
    assert shown["graph"] == GRAPH
    assert shown["shown"]["is_in_use"] is True
    assert {name: shown[name] for name in made} == made
    assert made in answered(admin.get(f"{ADDRESS}?limit=200"))["items"]


def test_the_same_again_is_200_and_another_recipe_a_new_version(admin: Caller) -> None:
    new = body()
    first = answered(admin.post(ADDRESS, json=new), 201)
    assert answered(admin.post(ADDRESS, json=new), 200) == first
    other = new | {"output_node_id": None}
    second = answered(admin.post(ADDRESS, json=other), 201)
    assert (second["version"], second["id"]) == (2, first["id"])
    listed = answered(admin.get(f"{ADDRESS}/{new['slug']}/versions"))["items"]
    assert [(one["version"], one["is_in_use"]) for one in listed] == [(2, True), (1, False)]
    assert {one["created_by"] for one in listed} == {f"user:{admin.person.user_id}"}
    earlier = answered(admin.get(f"{ADDRESS}/{new['slug']}?version=1"))
    assert (earlier["version"], earlier["shown"]["version"]) == (2, 1)
    assert earlier["shown"]["content_hash"] == first["content_hash"]
    refused(admin.get(f"{ADDRESS}/{new['slug']}?version=3"), 404, "not_found")
    assert [event for event, _ in events(admin)] == ["workflow.upload"] * 2


def test_versions_are_listed_by_pages(admin: Caller) -> None:
    slug = body()["slug"]
    for colour in range(3):
        node = {"class_type": "EmptyImage", "inputs": {"color": colour}}
        answered(admin.post(ADDRESS, json=body(slug=slug, graph=with_node("4", node))), 201)
    page = answered(admin.get(f"{ADDRESS}/{slug}/versions?limit=2"))
    rest = answered(admin.get(f"{ADDRESS}/{slug}/versions?cursor={page['next_cursor']}"))
    assert [one["version"] for one in page["items"] + rest["items"]] == [3, 2, 1]
    other = f"{ADDRESS}/colour-card/versions?cursor={page['next_cursor']}"
    refused(admin.get(other), 422, "invalid_cursor", "cursor")


def test_a_version_is_activated_and_a_workflow_switched_off_and_named(admin: Caller) -> None:
    new = body()
    first = answered(admin.post(ADDRESS, json=new), 201)
    second = answered(admin.post(ADDRESS, json=new | {"output_node_id": None}), 201)
    assert answered(changed(admin, new["slug"], version=1))["content_hash"] == first["content_hash"]
    again = answered(changed(admin, new["slug"], content_hash=second["content_hash"]))
    assert again["version"] == 2
    off = answered(changed(admin, new["slug"], is_active=False, name="Negative"))
    assert (off["is_active"], off["name"], off["version"]) == (False, "Negative", 2)
    assert events(admin)[2:] == [
        ("workflow.change", {"workflow": new["slug"], "changed": {"version": [2, 1]}}),
        ("workflow.change", {"workflow": new["slug"], "changed": {"version": [1, 2]}}),
        (
            "workflow.change",
            {
                "workflow": new["slug"],
                "changed": {"name": ["Invert", "Negative"], "is_active": [True, False]},
            },
        ),
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 7),
        ("version", 0),
        ("version", "1"),
        ("version", 2**31),
        ("content_hash", "0" * 64),
        ("content_hash", "x"),
        ("is_active", "maybe"),
        ("name", ""),
        ("kind", "video"),
    ],
)
def test_a_change_that_can_not_be_is_refused_by_its_field(
    admin: Caller, field: str, value: Any
) -> None:
    new = body()
    answered(admin.post(ADDRESS, json=new), 201)
    with nothing_written(admin.backend):
        refused(changed(admin, new["slug"], **{field: value}), 422, "invalid_input", field)


def test_what_does_not_exist_is_not_found(admin: Caller) -> None:
    with nothing_written(admin.backend):
        refused(admin.get(f"{ADDRESS}/nothing"), 404, "not_found")
        refused(admin.get(f"{ADDRESS}/nothing/versions"), 404, "not_found")
        refused(changed(admin, "nothing", is_active=False), 404, "not_found")
        refused(changed(admin, "nothing", version=1), 404, "not_found")


def test_a_graph_that_is_gone_is_told_and_brought_back_by_the_same_upload(admin: Caller) -> None:
    new = body()
    made = answered(admin.post(ADDRESS, json=new), 201)
    admin.backend.store.delete(graph_key(made["content_hash"]))
    refused(admin.get(f"{ADDRESS}/{new['slug']}"), 409, "not_possible_now")
    refused(changed(admin, new["slug"], version=1), 409, "not_possible_now")
    answered(admin.post(ADDRESS, json=new), 200)
    assert answered(admin.get(f"{ADDRESS}/{new['slug']}"))["graph"] == GRAPH


# Hostile uploads

LOADER = "graph.9.inputs.image"


@pytest.mark.parametrize(
    ("graph", "field"),
    [
        (with_node("9", 5), "graph.9"),
        (with_node("9", None), "graph.9"),
        (with_node("9", []), "graph.9"),
        (with_node("9", {"inputs": {}}), "graph.9.class_type"),
        (with_node("9", {"class_type": "SaveImage"}), "graph.9.inputs"),
        (with_node("9", {"class_type": "SaveImage", "inputs": None}), "graph.9.inputs"),
        (with_node("9", {"class_type": "SaveImage", "inputs": []}), "graph.9.inputs"),
        (with_node("9", {"class_type": "RunShell", "inputs": {}}), "graph.9.class_type"),
        (
            with_node("9", {"class_type": "ImageInvert", "inputs": {"image": ["8", 0]}}),
            "graph.9.inputs.image",
        ),
        (with_node("9", {"class_type": "ImageInvert", "inputs": {"image": ["9", 0]}}), "graph"),
        (
            {
                "1": {"class_type": "ImageBlend", "inputs": {"a": ["2", 0], "b": "{{image}}"}},
                "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
                "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0]}},
            },
            "graph",
        ),
        *(
            (with_node("9", {"class_type": "LoadImage", "inputs": {"image": name}}), LOADER)
            for name in (
                *("../../etc/passwd", "/etc/passwd", "a/b.png", "..\\x.png", "C:\\x.png", "~/x"),
                *("file:///etc/passwd", "http://host/x", "x.png [output]", "{{prompt}}.png"),
            )
        ),
        (with_node("9", {"class_type": "ImageInvert", "inputs": {"image": "{{x}}"}}), LOADER),
        ({"3": GRAPH["3"] | {"inputs": {}}}, "properties.0.placeholder"),
        ({}, "graph"),
        ([], "graph"),
        ("{}", "graph"),
        (None, "graph"),
        ({str(number): GRAPH["1"] for number in range(2_001)}, "graph"),
        ({"nodes": [], "links": []}, "graph"),
    ],
)  # fmt: skip
def test_a_bad_graph_is_refused_where_it_is_bad(admin: Caller, graph: Any, field: str) -> None:
    with nothing_written(admin.backend):
        answer = admin.post(ADDRESS, json=body(graph=graph))
        refused(answer, 422, "invalid_input", field)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("slug", "A card", "slug"),
        ("slug", "../card", "slug"),
        ("slug", "x" * 64, "slug"),
        ("slug", "deadbeefdeadbeefdeadbeefdeadbeef", "slug"),
        ("slug", None, "slug"),
        ("name", "", "name"),
        ("name", "x" * 201, "name"),
        ("kind", "3d", "kind"),
        ("output_node_id", "9", "output_node_id"),
        ("output_node_id", "", "output_node_id"),
        ("properties", [5], "properties.0"),
        ("properties", [{"name": "x"}], "properties.0.type"),
        ("properties", [IMAGE, {"name": "p", "type": "text"}], "properties.1.placeholder"),
        ("properties", [{}] * 101, "properties"),
        ("version", 3, "version"),
    ],
)
def test_a_bad_field_is_refused_by_its_name(
    admin: Caller, field: str, value: Any, told: str
) -> None:
    with nothing_written(admin.backend):
        refused(admin.post(ADDRESS, json=body(**{field: value})), 422, "invalid_input", told)


def test_deep_endless_and_huge_bodies_are_refused_at_the_door(admin: Caller) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    text = json.dumps(body(graph={"1": "HERE"}))
    with nothing_written(admin.backend):
        for graph, code in (
            (deep, 400),
            ('{"a":' * 50 + "1" + "}" * 50, 422),
            ("NaN", 400),
            ("1" * 5_000, 400),
            (json.dumps("x" * 5_000_000), 413),
        ):
            answer = admin.post(
                ADDRESS, data=text.replace('"HERE"', graph), content_type="application/json"
            )
            assert answer.status_code == code, answer.get_data(as_text=True)
            assert answer.mimetype == "application/problem+json"


def test_all_faults_are_told_at_once_and_not_without_end(admin: Caller) -> None:
    graph = {str(number): {"class_type": f"Bad{number}"} for number in range(1_000)}
    told = refused(admin.post(ADDRESS, json=body(graph=graph)), 422, "invalid_input")
    assert len(told["errors"]) == 100


def test_a_user_uploads_nothing(caller: MakeCaller) -> None:
    ada = caller()
    with nothing_written(ada.backend):
        refused(ada.post(ADDRESS, json=body()), 403, "forbidden")
        refused(ada.get(ADDRESS), 403, "forbidden")
