"""Every error leaves as application/problem+json, with a stable `code`.

A Refusal brings its own code and sentence. What the framework refuses (no such address,
a body that is no JSON) is put into the same shape. What nobody expected is logged with its
trace and told to the client as `internal_error`, with nothing of the inside in it.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask, Response, g
from werkzeug.exceptions import HTTPException

from models.errors import DATABASE_AWAY, DependencyUnavailable, Refusal

logger = logging.getLogger(__name__)

#: Codes of what the framework refuses; the refusals of models/errors.py bring their own.
FRAMEWORK_CODES = {
    400: ("bad_request", "The request can't be understood."),
    404: ("not_found", "There is no such thing here."),
    405: ("method_not_allowed", "This address does not take this method."),
    406: ("not_acceptable", "The answer can't be given in this form."),
    408: ("request_timeout", "The request took too long to arrive."),
    411: ("length_required", "The request has to say how long it is."),
    412: ("precondition_failed", "The condition of the request does not hold."),
    413: ("body_too_large", "The body is too large."),
    414: ("address_too_long", "The address is too long."),
    415: ("unsupported_media_type", "The body has to be JSON."),
    416: ("range_not_satisfiable", "The file does not have this range."),
    422: ("invalid_input", "Some of the input is not valid."),
    431: ("headers_too_large", "The headers are too large."),
    500: ("internal_error", "Something went wrong on our side."),
}

#: The field to look at, where a refusal is always about the same one.
FIELDS = {
    "email_taken": "email",
    "effect_unavailable": "effect_id",
    "idempotency_key_reused": "idempotency_key",
    "invalid_cursor": "cursor",
    "slug_taken": "slug",
    "transaction_id_reused": "provider_transaction_id",
}


def install(app: Flask) -> None:
    app.register_error_handler(Refusal, refused)
    for away in DATABASE_AWAY:
        app.register_error_handler(away, database_away)
    app.register_error_handler(Exception, unexpected)


def problem(
    *,
    status: int,
    code: str,
    title: str,
    detail: str,
    errors: dict[str, list[str]] | None = None,
    **extra: Any,
) -> Response:
    body: dict[str, Any] = {
        "type": f"urn:comfyfleet:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        **extra,
    }
    if errors:
        body["errors"] = errors
    if request_id := g.get("request_id"):
        body["request_id"] = request_id
    response = Response(json.dumps(body), status=status, mimetype="application/problem+json")
    if "retry_after_seconds" in extra:
        response.headers["Retry-After"] = str(extra["retry_after_seconds"])
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


@contextmanager
def about(field: str) -> Iterator[None]:
    """What is refused in here, by people who know of no request, is about this field of it."""
    try:
        yield
    except Refusal as refusal:
        if refusal.status == 422 and not refusal.errors:
            refusal.errors = {field: [refusal.detail]}
        raise


def refused(refusal: Refusal) -> Response:
    errors = refusal.errors
    if not errors and (field := FIELDS.get(refusal.code)):
        errors = {field: [refusal.detail]}
    return problem(
        status=refusal.status,
        code=refusal.code,
        title=refusal.title,
        detail=refusal.detail,
        errors=errors,
        **refusal.extra,
    )


def http_error(error: HTTPException) -> Response:
    """What werkzeug, Flask or webargs refused."""
    status = error.code or 500
    code, title = FRAMEWORK_CODES.get(status, ("http_error", error.name))
    sent: dict[str, Any] = getattr(error, "data", None) or {}
    errors = flatten(sent.get("messages") or sent.get("errors") or {})
    detail = _first_sentence(errors) or title
    response = problem(status=status, code=code, title=title, detail=detail, errors=errors)
    for name, value in error.get_headers():
        if name in ("Allow", "Content-Range"):
            response.headers[name] = value
    return response


def flatten(messages: Any, path: str = "") -> dict[str, list[str]]:
    """webargs nests by location and field; we name fields by their path in the body."""
    if isinstance(messages, dict):
        flat: dict[str, list[str]] = {}
        for key, value in messages.items():
            at_top = not path and key in ("json", "query", "headers", "_schema", "json_or_form")
            flat |= flatten(value, path if at_top else f"{path}.{key}".lstrip("."))
        return flat
    sentences = messages if isinstance(messages, list) else [messages]
    return {path or "body": [str(sentence) for sentence in sentences]}


def _first_sentence(errors: dict[str, list[str]]) -> str:
    return next((f"{field}: {said[0]}" for field, said in errors.items() if said), "")


def database_away(error: Exception) -> Response:
    logger.error("A database does not answer: %s", error)
    return refused(
        DependencyUnavailable(
            "The database does not answer. Please try again in a moment.", retry_after_seconds=2
        )
    )


def unexpected(error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return http_error(error)
    logger.exception("Unexpected error", exc_info=error)
    code, title = FRAMEWORK_CODES[500]
    return problem(
        status=500,
        code=code,
        title=title,
        detail="Please try again; if it happens again, tell us the request id.",
    )
