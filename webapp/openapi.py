"""The OpenAPI document, the page to browse it (without internet), and request parsing."""

import json
import re
from http import HTTPStatus
from typing import Any

from flask import Blueprint as PlainBlueprint
from flask import Flask, Response, render_template, request, send_from_directory
from flask_smorest import Api, Blueprint
from marshmallow import INCLUDE, Schema, fields, missing
from swagger_ui_bundle import swagger_ui_path
from webargs.flaskparser import FlaskParser, abort
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException

from models.errors import InvalidInput
from webapp import problems

# PostgreSQL stores neither; and no person types them.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

PROBLEM = "application/problem+json"


class ProblemSchema(Schema):
    """RFC 9457. `code` is what programs should branch on; docs/errors.md lists them."""

    class Meta:
        unknown = INCLUDE  # a case may bring facts of its own

    type = fields.String(
        required=True, metadata={"example": "urn:comfyfleet:problem:insufficient_tokens"}
    )
    title = fields.String(
        required=True, metadata={"example": "The wallet does not cover the price."}
    )
    status = fields.Integer(required=True, metadata={"example": 422})
    detail = fields.String(
        required=True, metadata={"example": "This costs 20 tokens; the wallet holds 7."}
    )
    code = fields.String(required=True, metadata={"example": "insufficient_tokens"})
    errors = fields.Dict(
        keys=fields.String(),
        values=fields.List(fields.String()),
        metadata={"description": "Sentences by field, where fields are at fault."},
    )
    request_id = fields.String(metadata={"description": "Tell us this when you ask for help."})
    retry_after_seconds = fields.Integer(metadata={"description": "On 429 and 503."})
    required_tokens = fields.Integer(metadata={"description": "On `insufficient_tokens`."})
    balance = fields.Integer(metadata={"description": "On `insufficient_tokens`."})


class Parser(FlaskParser):
    """JSON bodies, with text checked before anybody tries to store it."""

    def load_json(self, req: Any, schema: Any) -> Any:  # noqa: ARG002
        body = req.get_data()
        if not body:
            return missing
        if not req.is_json:
            abort(415)
        try:
            return refuse_unstorable(json.loads(body.decode(), parse_constant=_refuse_constant))
        except (RecursionError, ValueError):  # not UTF-8, endless nesting, endless digits, ...
            abort(400, messages={"json": ["This is not valid JSON."]})

    def load_querystring(self, req: Any, schema: Any) -> Any:
        """`?status=&cursor=` is how forms say nothing: an empty value counts as none."""
        given = [(name, value) for name, value in req.args.items(multi=True) if value]
        for name, value in given:
            refuse_unstorable(value, name)
        return self._makeproxy(MultiDict(given), schema)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"Python reads {name}, but JSON has no such thing.")


def refuse_unstorable(value: Any, path: str = "body") -> Any:
    if isinstance(value, str):
        if UNSTORABLE.search(value):
            raise InvalidInput.field(path, "Contains characters that can't be stored.")
    elif isinstance(value, dict):
        for key, member in value.items():
            refuse_unstorable(key, path)
            refuse_unstorable(member, key if path == "body" else f"{path}.{key}")
    elif isinstance(value, list):
        for member in value:
            refuse_unstorable(member, path)
    return value


class ApiBlueprint(Blueprint):  # type: ignore[misc]
    ARGUMENTS_PARSER = Parser()


class ProblemApi(Api):  # type: ignore[misc]
    """flask-smorest, with every error as problem+json, in fact and in the document."""

    ERROR_SCHEMA = ProblemSchema

    def handle_http_exception(self, error: HTTPException) -> Response:
        return problems.http_error(error)

    def _register_pagination_header(self) -> None:
        """None: we page by cursor, not by flask-smorest's page numbers."""

    def _register_responses(self) -> None:
        answer = {"content": {PROBLEM: {"schema": ProblemSchema}}}
        for status in HTTPStatus:
            described: dict[str, Any] = {"description": status.phrase}
            if status >= 400:
                described |= answer
            self.spec.components.response(status.name, described, lazy=True)
        self.spec.components.response(
            "DEFAULT_ERROR", {"description": "The request was refused."} | answer, lazy=True
        )


def install(app: Flask) -> ProblemApi:
    app.config.update(
        API_TITLE="comfyfleet",
        API_VERSION="1",
        OPENAPI_VERSION="3.0.3",
        OPENAPI_URL_PREFIX="/",
        OPENAPI_JSON_PATH="openapi.json",
    )
    app.register_blueprint(pages)
    return ProblemApi(
        app,
        spec_kwargs={
            "info": {
                "description": "Image and video effects on fleets of GPUs. Upload media, choose "
                "an effect, pay in tokens, fetch the result."
            },
            "components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
            "security": [{"bearer": []}],
        },
    )


pages = PlainBlueprint("docs", __name__)


@pages.get("/docs")
def browse() -> Response:
    page = Response(render_template("docs.html"))
    page.headers["Content-Security-Policy"] = (
        "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'"
    )
    return page


@pages.get("/docs/<path:name>")
def asset(name: str) -> Response:
    if name == "start.js":
        script = f"window.ui = SwaggerUIBundle({json.dumps(_ui_options())});"
        return Response(script, mimetype="text/javascript")
    return send_from_directory(str(swagger_ui_path), name, conditional=True)


def _ui_options() -> dict[str, Any]:
    return {
        "url": f"{request.script_root}/openapi.json",
        "dom_id": "#ui",
        "deepLinking": True,
        "persistAuthorization": True,
        "displayRequestDuration": True,
        "validatorUrl": None,  # otherwise it shows our document to a server of swagger.io
    }
