"""`/metrics`, for Prometheus. Open to the networks of the settings, and to who has the token."""

import hmac
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from flask import Blueprint, Response, request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from models.errors import Unauthorized
from models.settings import BadSetting, Settings
from webapp import exposition, http_figures
from webapp.auth import bearer_token, has_bearer_token
from webapp.context import backend, figures
from webapp.rate_limits import count_failed_sign_in

blueprint = Blueprint("metrics", __name__)

#: Set by proxies. Whoever comes through one that nobody told us of is not on its machine.
FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


@blueprint.get("/metrics")
def metrics() -> Response:
    """The figures that could not be read are missing, those of this server never are."""
    _let_in()
    told = generate_latest(http_figures.all_counts())
    told += generate_latest(exposition.registry_of(figures().get()))
    return Response(told, content_type=CONTENT_TYPE_LATEST)


def _let_in() -> None:
    settings = backend().settings
    if not has_bearer_token():
        if _is_near(settings):
            return
        raise Unauthorized("Send the header `Authorization: Bearer <token>`.")
    given = bearer_token().encode()
    matches = [hmac.compare_digest(given, one.encode()) for one in settings.metrics_token.split()]
    if not any(matches):
        count_failed_sign_in()
        raise Unauthorized("This token does not open the metrics.")


def _is_near(settings: Settings) -> bool:
    if not settings.trusted_proxies and any(name in request.headers for name in FORWARDED):
        return False
    try:
        address = ip_address(request.remote_addr or "")
    except ValueError:  # of a socket file
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in networks(settings.metrics_networks))


@lru_cache(maxsize=4)
def networks(words: str) -> list[IPv4Network | IPv6Network]:
    try:
        return [ip_network(word) for word in words.split()]
    except ValueError as error:
        raise BadSetting(f"COMFYFLEET_METRICS_NETWORKS: {error}.") from None
