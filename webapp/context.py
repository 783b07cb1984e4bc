"""What a request has at hand: the backend, and who is asking."""

from typing import cast

from flask import current_app, g

from models.users import Principal
from models.workers import Identity
from tasks.backend import Backend


def backend() -> Backend:
    return cast(Backend, current_app.extensions["comfyfleet"])


def principal() -> Principal:
    return cast(Principal, g.principal)


def worker() -> Identity:
    return cast(Identity, g.worker)
