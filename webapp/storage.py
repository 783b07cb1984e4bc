"""The signed addresses of the local object store. With S3, clients talk to S3 instead.

Whoever holds a valid address may use it; there is no sign-in here. What comes back is
always a download in a sandbox, because users put these files there.
"""

from collections.abc import Iterator
from contextlib import suppress

from flask import Blueprint, Response, current_app, request
from werkzeug.exceptions import ClientDisconnected, RequestedRangeNotSatisfiable
from werkzeug.wsgi import wrap_file

from models import object_paths
from models.errors import NotFound
from models.object_store_local import LocalStore

blueprint = Blueprint("storage", __name__, url_prefix="/storage")

_CHUNK_BYTES = 256 * 1024


@blueprint.put("/<path:key>")
def receive_object(key: str) -> Response:
    store = _local_store()
    grant = store.verify("PUT", key, request.args.to_dict())
    request.max_content_length = store.max_bytes  # otherwise it is the one of JSON bodies
    etag = store.receive(
        grant,
        _body(),
        mime_type=request.headers.get("Content-Type"),
        size=request.content_length,
    )
    response = Response(status=200)
    response.set_etag(etag)
    return response


@blueprint.get("/<path:key>")
def send_object(key: str) -> Response:
    store = _local_store()
    grant = store.verify(request.method, key, request.args.to_dict())
    file, stat = store.open(key)
    response = Response(
        wrap_file(request.environ, file, _CHUNK_BYTES),
        mimetype=stat.mime_type,
        direct_passthrough=True,
    )
    response.content_length = stat.size_bytes
    response.set_etag(stat.etag)
    response.headers["Content-Disposition"] = object_paths.content_disposition(key, grant.filename)
    response.cache_control.private = True
    try:
        response.make_conditional(request, accept_ranges=True, complete_length=stat.size_bytes)
    except RequestedRangeNotSatisfiable:
        file.close()
        raise
    return response


@blueprint.after_request
def distrust_content(response: Response) -> Response:
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    response.headers["Access-Control-Expose-Headers"] = "ETag"  # multipart clients need it
    return response


def _body() -> Iterator[bytes]:
    # A client that goes away ends the body early; the store counts and refuses.
    with suppress(ClientDisconnected):
        while chunk := request.stream.read(_CHUNK_BYTES):
            yield chunk


def _local_store() -> LocalStore:
    store = current_app.extensions["comfyfleet"].store
    if not isinstance(store, LocalStore):
        raise NotFound("Files are not served from here.")
    return store
