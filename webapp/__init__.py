"""The web application: all wiring on one screen."""

import re
import uuid
from functools import partial

from flask import Flask, Response, g, request
from werkzeug.middleware.proxy_fix import ProxyFix

from models import logs, migrate, traces
from models.errors import NotFound
from models.settings import BadSetting, Settings
from tasks import figures
from tasks.backend import Backend
from tasks.figures import Recent
from webapp import cors, http_figures, openapi, problems, storage, tracing
from webapp.access_log import KNOWN
from webapp.api import (
    admin,
    admin_audit,
    admin_dead_letters,
    admin_dispatches,
    admin_effects,
    admin_events,
    admin_fleets,
    admin_metrics,
    admin_workers,
    admin_workflows,
    ai_jobs,
    auth,
    effects,
    health,
    metrics,
    uploads,
    videos,
    wallet,
    webhook_endpoints,
    worker,
)
from webapp.live import Live
from webapp.rate_limits import RateLimits

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


#: What the API consists of.
RESOURCES = (
    auth.public,
    auth.private,
    effects.blueprint,
    uploads.blueprint,
    videos.blueprint,
    ai_jobs.blueprint,
    wallet.blueprint,
    webhook_endpoints.blueprint,
    admin.blueprint,
    admin_workflows.blueprint,
    admin_effects.blueprint,
    admin_fleets.blueprint,
    admin_metrics.blueprint,
    admin_workers.blueprint,
    admin_dispatches.blueprint,
    admin_dead_letters.blueprint,
    admin_audit.blueprint,
    admin_events.blueprint,
    worker.blueprint,
)


def create_app(settings: Settings | None = None) -> Flask:
    settings = settings or Settings.from_env()
    if len(settings.secret_key) < 32:
        raise BadSetting("COMFYFLEET_SECRET_KEY needs at least 32 characters.")
    backend = Backend.open(settings)
    migrate.require_current(backend.databases, settings)

    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.url_map.strict_slashes = False
    app.extensions["comfyfleet"] = backend
    app.extensions["comfyfleet.figures"] = recent = Recent(
        partial(figures.read, backend), seconds=settings.metrics_seconds
    )
    backend.before_close.append(recent.close)
    app.extensions["comfyfleet.live"] = Live(
        app, job_shape=ai_jobs.shape, overview=admin_events.event
    )
    backend.before_close.append(app.extensions["comfyfleet.live"].close)
    app.extensions["comfyfleet.rate_limits"] = RateLimits.from_settings(settings)
    if hops := settings.trusted_proxies:
        app.wsgi_app = ProxyFix(  # type: ignore[method-assign]
            app.wsgi_app, x_for=hops, x_proto=hops, x_host=hops
        )

    tracing.install(app)
    metrics.networks(settings.metrics_networks)  # here already, if they are none
    http_figures.install(app)
    problems.install(app)
    app.before_request(name_request)
    app.before_request(refuse_unstorable_address)
    app.after_request(finish_response)
    app.teardown_request(forget_request)
    cors.install(app, settings.cors_origins.split())
    api = openapi.install(app)
    for blueprint in RESOURCES:
        api.register_blueprint(blueprint)
    app.register_blueprint(health.blueprint)
    app.register_blueprint(metrics.blueprint)
    app.register_blueprint(storage.blueprint)
    return app


def name_request() -> None:
    """Every request has an id and a trace, its caller's or ours, so that logs and answers meet."""
    given = request.headers.get("X-Request-ID", "")
    g.request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    logs.begin(request_id=g.request_id)
    g.trace_id = traces.id_of(traces.begin(request.headers.get("traceparent")))


def refuse_unstorable_address() -> None:
    if openapi.UNSTORABLE.search(request.path):
        raise NotFound("Nothing is called like that.")


def finish_response(response: Response) -> Response:
    response.headers["X-Request-ID"] = g.get("request_id", "")
    response.headers["X-Trace-Id"] = g.get("trace_id", "")
    request.environ[KNOWN] = logs.known()  # for the access log, written when all is over
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    return response


def forget_request(_: BaseException | None) -> None:
    logs.end()
    traces.end()
