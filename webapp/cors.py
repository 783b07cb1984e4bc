"""Which web pages may call us: those of the allow-list, and no others."""

from flask import Flask, Response, request

METHODS = "GET, POST, PUT, PATCH, DELETE"
HEADERS = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Range, X-Request-ID, traceparent"
)
EXPOSED = "ETag, Retry-After, X-Request-ID, X-Trace-Id, Content-Range, Accept-Ranges"


def install(app: Flask, origins: list[str]) -> None:
    allowed = frozenset(origins)

    @app.before_request
    def answer_preflight() -> Response | None:
        asks = "Access-Control-Request-Method" in request.headers
        if request.method == "OPTIONS" and asks:
            return Response(status=204)
        return None

    @app.after_request
    def allow_origin(response: Response) -> Response:
        if not allowed:
            return response
        response.vary.add("Origin")
        origin = request.headers.get("Origin")
        if origin in allowed:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = EXPOSED
            if request.method == "OPTIONS":
                response.headers["Access-Control-Allow-Methods"] = METHODS
                response.headers["Access-Control-Allow-Headers"] = HEADERS
                response.headers["Access-Control-Max-Age"] = "600"
        return response
