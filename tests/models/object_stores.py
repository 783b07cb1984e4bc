"""Both object stores, each behind a real HTTP server, for the tests to send requests to."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import boto3
import pytest
import requests
from flask import Flask, jsonify
from flask.typing import ResponseReturnValue
from werkzeug.serving import make_server

from models import object_paths
from models.errors import Refusal
from models.object_store import ObjectStore, SignedRequest, open_store
from models.settings import Settings
from webapp import storage

SECRET = "a secret of the tests, long enough to be taken"


@dataclass
class Served:
    """A store, and what its server answers where servers differ."""

    name: str
    store: ObjectStore
    folder: Path
    tenant: str = field(default_factory=lambda: uuid4().hex)

    def upload_key(self, mime_type: str = "image/png") -> str:
        return object_paths.upload_key(self.tenant, uuid4(), mime_type)

    def either(self, *, s3: int, local: int) -> int:
        return s3 if self.name == "s3" else local


def send(signed: SignedRequest, body: object, **headers: str | None) -> requests.Response:
    """Send a signed request; headers are given as content_type=..., None leaves one out."""
    changed = {name.replace("_", "-"): value for name, value in headers.items()}
    merged = {name.lower(): value for name, value in signed.headers.items()} | changed
    return requests.request(
        signed.method,
        signed.url,
        data=body,  # type: ignore[arg-type]
        headers={name: value for name, value in merged.items() if value is not None},
        timeout=10,
    )


@contextmanager
def served(name: str, folder: Path) -> Iterator[Served]:
    with _s3(folder) if name == "s3" else _local(folder) as running:
        yield running


@contextmanager
def _s3(folder: Path) -> Iterator[Served]:
    bucket = f"bucket-{uuid4().hex}"
    endpoint = os.environ["TEST_S3_URL"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", os.environ["TEST_S3_ACCESS_KEY"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["TEST_S3_SECRET_KEY"])
        patch.delenv("AWS_SESSION_TOKEN", raising=False)
        boto3.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(
            Bucket=bucket
        )
        settings = Settings(storage_url=f"s3://{bucket}/some/prefix", s3_endpoint_url=endpoint)
        yield Served("s3", open_store(settings), folder)


@contextmanager
def _local(folder: Path) -> Iterator[Served]:
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = 1000  # uploads have to go past the limit of JSON bodies
    app.register_blueprint(storage.blueprint)
    app.register_error_handler(Refusal, _answer_refusal)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    settings = Settings(
        storage_url=f"file://{folder / 'objects'}",
        public_url=f"http://127.0.0.1:{server.server_port}",
        secret_key=SECRET,
        upload_max_bytes=50_000_000,
    )
    store = open_store(settings)
    app.extensions["comfyfleet"] = SimpleNamespace(store=store)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Served("local", store, folder)
    server.shutdown()
    thread.join()
    server.server_close()


def _answer_refusal(refusal: Refusal) -> ResponseReturnValue:
    return jsonify(code=refusal.code, detail=refusal.detail), refusal.status
