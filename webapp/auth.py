"""Who is asking. A blueprint says whom it lets in; its views never ask again."""

from flask import g, request
from flask_smorest import Blueprint

from models import hot_heartbeat, hot_path, logs, users, workers
from models.errors import Forbidden, Unauthorized
from models.users import Principal
from webapp.context import backend, principal, worker
from webapp.rate_limits import count_failed_sign_in, limit_request, limit_worker


def let_anybody_in(blueprint: Blueprint) -> Blueprint:
    blueprint.before_request(limit_request)
    return blueprint


def let_users_in(blueprint: Blueprint) -> Blueprint:
    blueprint.before_request(sign_in)
    blueprint.before_request(limit_request)
    return blueprint


def let_admins_in(blueprint: Blueprint) -> Blueprint:
    blueprint.before_request(sign_in)
    blueprint.before_request(_refuse_non_admins)
    blueprint.before_request(limit_request)
    return blueprint


def let_workers_in(blueprint: Blueprint, *, entrance: str) -> Blueprint:
    """All calls are for workers, but for the one by which they come in."""

    def check() -> None:
        if request.endpoint == f"{blueprint.name}.{entrance}":
            limit_request()
        else:
            # Heartbeats bring the newest word on draining; the others may rely on an older one.
            identify_worker(anew=request.endpoint == f"{blueprint.name}.heartbeat")
            logs.bind(worker_id=worker().worker_id)
            limit_worker()

    blueprint.before_request(check)
    return blueprint


def identify_worker(*, anew: bool) -> None:
    token, databases = bearer_token(), backend().databases
    if not anew and (remembered := backend().workers.get(token)):
        g.worker = remembered
        return
    if databases.on_postgres and (known := hot_heartbeat.identify(databases, token)):
        g.worker = known
        backend().workers.put(token, known)
        return
    with databases.central(read_only=True) as session:
        try:
            g.worker = workers.identify(session, token)
        except Unauthorized:
            count_failed_sign_in()
            raise
    if workers.is_seen_long_ago(g.worker):
        with databases.central() as session:
            workers.note_seen(session, g.worker.id)


def sign_in() -> None:
    g.principal = _identify_user(bearer_token())
    logs.bind(tenant_id=g.principal.tenant_id)


def _identify_user(token: str) -> Principal:
    if backend().databases.on_postgres and (who := hot_path.identify(backend().databases, token)):
        return who
    with backend().databases.central(read_only=True) as session:
        try:
            return users.identify(session, token)
        except Unauthorized:
            count_failed_sign_in()
            raise


def has_bearer_token() -> bool:
    return "Authorization" in request.headers


def bearer_token() -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("Send the header `Authorization: Bearer <token>`.")
    return token.strip()


def _refuse_non_admins() -> None:
    if not principal().is_admin:
        raise Forbidden("This needs an administrator.")
