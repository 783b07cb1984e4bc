"""Is it alive, and can it work? For load balancers and people woken up at night."""

from flask import Blueprint, jsonify
from flask.typing import ResponseReturnValue
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from models.errors import DependencyUnavailable
from webapp.context import backend

blueprint = Blueprint("health", __name__)


@blueprint.get("/healthz")
def healthz() -> ResponseReturnValue:
    """The process answers. Asks nobody else, so a database outage restarts no web process."""
    return jsonify(status="ok")


@blueprint.get("/readyz")
def readyz() -> ResponseReturnValue:
    """Everything a request needs answers. Redis is reported but not needed: submits go on."""
    names = ["central", *(f"pool:{name}" for name in backend().databases.pools)]
    checks = {name: _database_answers(name) for name in names}
    ready = all(checks.values())
    checks["redis"] = _redis_answers()
    if not ready:
        raise DependencyUnavailable(
            "A database does not answer.", checks=checks, retry_after_seconds=2
        )
    return jsonify(status="ready", checks=checks)


def _database_answers(name: str) -> bool:
    try:
        with backend().databases.engine(name).connect() as connection:
            return bool(connection.scalar(text("SELECT 1")))
    except SQLAlchemyError:
        return False


def _redis_answers() -> bool:
    url = backend().settings.redis_url
    try:
        with Redis.from_url(url, socket_timeout=0.5, socket_connect_timeout=0.5) as redis:
            return bool(redis.ping())
    except RedisError:
        return False
