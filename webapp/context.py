"""What a request has at hand: the backend, and who is asking."""

from typing import cast

from flask import current_app, g

from models.users import Principal
from models.workers import Identity
from tasks.backend import Backend
from tasks.figures import Recent
from webapp.live import Live


def backend() -> Backend:
    return cast(Backend, current_app.extensions["comfyfleet"])


def live() -> Live:
    return cast(Live, current_app.extensions["comfyfleet.live"])


def figures() -> Recent:
    return cast(Recent, current_app.extensions["comfyfleet.figures"])


def principal() -> Principal:
    return cast(Principal, g.principal)


def worker() -> Identity:
    return cast(Identity, g.worker)
