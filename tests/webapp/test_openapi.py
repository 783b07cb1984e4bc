"""The document of the API, the page to browse it, and the page of error codes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from flask import Flask
from flask.testing import FlaskClient

from models import errors, jobs
from models.dead_letters import DeadLetterReason
from models.errors import Refusal, every_refusal
from tasks import orphans
from tests.webapp.calls import Json, answered
from webapp import problems

ROOT = Path(__file__).parents[2]
METHODS = {"get", "post", "put", "patch", "delete"}


@pytest.fixture(scope="module")
def document(plain_app: Flask) -> Json:
    return answered(plain_app.test_client().get("/openapi.json"))


def operations(document: Json) -> Iterator[tuple[str, Json]]:
    for path, item in document["paths"].items():
        for method in METHODS & set(item):
            yield f"{method.upper()} {path}", item[method]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for member in value:
            yield from references(member)


def resolved(document: Json, value: Json) -> Json:
    while "$ref" in value:
        target: Any = document
        for step in value["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        value = target
    return value


def test_the_document_is_valid_openapi_3_0(document: Json) -> None:
    assert document["openapi"] == "3.0.3"
    assert document["info"]["title"] == "comfyfleet"
    schemathesis.openapi.from_dict(document).validate()


def test_every_reference_leads_somewhere(document: Json) -> None:
    found = set(references(document))
    assert found
    for reference in found:
        assert resolved(document, {"$ref": reference})


def test_nothing_is_described_that_nobody_uses(document: Json) -> None:
    used = {reference.rpartition("/")[2] for reference in references(document)}
    assert set(document["components"]["schemas"]) <= used


def test_every_route_of_the_api_is_in_the_document(plain_app: Flask, document: Json) -> None:
    described = {name for name, _ in operations(document)}
    for rule in plain_app.url_map.iter_rules():
        if rule.rule.startswith("/api/"):
            path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
                assert f"{method} {path}" in described


def test_every_operation_says_what_it_does_and_what_it_answers(document: Json) -> None:
    for name, operation in operations(document):
        assert operation["summary"], name
        assert not operation["summary"].endswith(" "), name
        assert operation["tags"], name
        good = [code for code in operation["responses"] if code.startswith("2")]
        assert good, name
        for code in good:
            answer = resolved(document, operation["responses"][code])
            kind = "text/event-stream" if name.endswith("/events") else "application/json"
            if code != "204":
                assert answer["content"][kind]["schema"], name


def test_every_operation_says_how_it_refuses(document: Json) -> None:
    for name, operation in operations(document):
        for code, answer in operation["responses"].items():
            if code == "default" or code >= "400":
                content = resolved(document, answer)["content"]
                assert list(content) == ["application/problem+json"], name
        assert "default" in operation["responses"], name


def test_the_worker_protocol_is_one_chapter(document: Json) -> None:
    assert "worker" in [tag["name"] for tag in document["tags"]]
    for name, operation in operations(document):
        assert (operation["tags"] == ["worker"]) == ("/api/worker/" in name)


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        (
            "poll",
            "dispatch_id lease_token lease_expires_at job_id provider workflow attempt "
            "deadline_seconds input_url output_url output_headers input_payload trace",
        ),
        (
            "heartbeat",
            "lease_expires_at cancel_requested draining next_heartbeat_seconds output_url "
            "output_headers uploads",
        ),
        (
            "register",
            "worker_id token queue workflows_assigned heartbeat_seconds lease_seconds",
        ),
        ("complete", "status"),
    ],
)
def test_every_field_of_an_answer_to_a_worker_is_described(
    document: Json, operation: str, told: str
) -> None:
    answers = document["paths"][f"/api/worker/{operation}"]["post"]["responses"]
    good = next(answer for code, answer in answers.items() if code in ("200", "201"))
    schema = resolved(document, good["content"]["application/json"]["schema"])
    assert set(schema["properties"]) == set(told.split())


def test_every_body_shows_an_example(document: Json) -> None:
    for name, operation in operations(document):
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            for field, kind in fields(document, schema):
                assert "example" in kind or kind.get("format") == "uuid", (name, field)


def fields(document: Json, schema: Json) -> Iterator[tuple[str, Json]]:
    """The required fields, down to those that hold no others."""
    whole = resolved(document, schema)
    for name in whole.get("required", []):
        kind = resolved(document, whole["properties"][name])
        inner = kind.get("items", kind)
        if "properties" in resolved(document, inner):
            yield from fields(document, inner)
        else:
            yield name, kind


def test_signing_in_is_asked_for_everywhere_but_at_the_door(document: Json) -> None:
    assert document["security"] == [{"bearer": []}]
    open_doors = {name for name, one in operations(document) if one.get("security") == []}
    register = {"POST /api/auth/register", "POST /api/worker/register"}
    assert open_doors == register | {"POST /api/auth/login"}


def test_the_page_brings_everything_it_needs_itself(plain_client: FlaskClient) -> None:
    page = plain_client.get("/docs")
    assert (page.status_code, page.mimetype) == (200, "text/html")
    html = page.get_data(as_text=True)
    assert not re.search(r"""(src|href)=["'](https?:)?//""", html)
    assets = re.findall(r"""(?:src|href)=["']([^"']+)""", html)
    assert {asset.rpartition(".")[2] for asset in assets} == {"css", "js", "png"}
    for asset in assets:
        assert asset.startswith("/docs/")
        answer = plain_client.get(asset, buffered=True)
        assert answer.status_code == 200, asset
        assert answer.data
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]


def test_the_page_asks_no_other_server_for_anything(plain_client: FlaskClient) -> None:
    script = plain_client.get("/docs/start.js").get_data(as_text=True)
    assert '"url": "/openapi.json"' in script
    assert '"validatorUrl": null' in script
    css = plain_client.get("/docs/swagger-ui.css", buffered=True).get_data(as_text=True)
    assert not re.search(r"url\(['\"]?https?:", css)


@pytest.mark.parametrize("name", ["nothing.js", "../wsgi.py", "..%2f..%2fwsgi.py", "%2fetc/passwd"])
def test_the_page_serves_only_its_own_files(plain_client: FlaskClient, name: str) -> None:
    assert plain_client.get(f"/docs/{name}", follow_redirects=True).status_code == 404


def documented() -> dict[str, str]:
    """Code and status of every row of the table in docs/errors.md."""
    table = (ROOT / "docs/errors.md").read_text().partition("## Codes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \| (.+) \|$", table, re.MULTILINE)
    assert len(rows) == len({code for code, *_ in rows})
    assert all(meaning and remedy for _, _, meaning, remedy in rows)
    return {code: status for code, status, *_ in rows}


def test_every_code_is_documented_with_its_status() -> None:
    raised = {refusal.code: str(refusal.status) for refusal in every_refusal()}
    framework = {code: str(status) for status, (code, _) in problems.FRAMEWORK_CODES.items()}
    assert documented() == raised | framework | {"http_error": "any"}


def test_every_refusal_is_in_the_tree() -> None:
    tree = re.findall(r"── (\w+) +(\d+) +(\w+)", errors.__doc__ or "")
    every = [(one.__name__, str(one.status), one.code) for one in every_refusal()]
    assert sorted(tree) == sorted(every)
    assert all(issubclass(one, Refusal) and one.title.endswith(".") for one in every_refusal())


def test_every_reason_of_a_failed_job_is_documented() -> None:
    page = (ROOT / "docs/errors.md").read_text().partition("## Why a job failed")[2]
    told = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    code = "\n".join(path.read_text() for path in (ROOT / "tasks").glob("*.py"))
    given = set(re.findall(r'\bcode="(\w+)"', code)) | {
        "cancelled",
        jobs.SUBMISSION_TIMEOUT,
        orphans.LOST,
        *DeadLetterReason,
    }
    assert given == told


def test_every_reason_that_our_worker_gives_is_documented() -> None:
    page = (ROOT / "docs/errors.md").read_text().partition("## Why a job failed")[2]
    code = "\n".join(path.read_text() for path in (ROOT / "gpu_worker").glob("*.py"))
    given = set(re.findall(r'(?:\bcode|^INVALID) ?= ?"(\w+)"', code, re.MULTILINE))
    assert {"execution_failed", "invalid_workflow"} <= given
    assert [reason for reason in given if f"`{reason}`" not in page] == []
