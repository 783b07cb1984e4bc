"""A customer's whole way over real HTTP, with nothing of ours between the client and the server."""

import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
import requests
from flask import Flask

from tasks import money
from tests.fixtures import Person
from tests.webapp.calls import PNG, Caller, Json, completed
from tests.webapp.conftest import served
from tests.webapp.wires import dead_port

AppWith = Callable[..., Flask]


class Customer:
    """Knows the address of the API, and nothing else."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session = requests.Session()

    def call(self, method: str, path: str, expected: int, **given: Any) -> Json:
        answer = self._session.request(method, self._address + path, timeout=20, **given)
        assert answer.status_code == expected, answer.text
        body: Json = answer.json() if answer.content else {}
        return body

    def register(self) -> Person:
        new = {"email": f"{uuid4().hex}@example.com", "password": "correct horse"}
        made = self.call("POST", "/api/auth/register", 201, json=new)
        self._session.headers["Authorization"] = f"Bearer {made['token']}"
        user = made["user"]
        return Person(UUID(user["id"]), UUID(user["tenant_id"]), made["token"], user["email"])

    def announce(self, body: bytes) -> Json:
        new = {"filename": "cat.png", "mime_type": "image/png", "size_bytes": len(body)}
        return self.call("POST", "/api/videos/uploads", 201, json=new)

    def close(self) -> None:
        self._session.close()


@pytest.fixture
def house(plain_app_with: AppWith) -> Iterator[tuple[Flask, Customer]]:
    with dead_port() as port:
        pass
    app = plain_app_with(public_url=f"http://127.0.0.1:{port}")
    with served(app, port) as address:
        customer = Customer(address)
        yield app, customer
        customer.close()


def test_from_signing_up_to_the_result(house: tuple[Flask, Customer]) -> None:
    app, customer = house
    ada = customer.register()
    announced = customer.announce(PNG)
    target = announced["upload"]
    sent = requests.put(target["url"], data=PNG, headers=target["headers"], timeout=20)
    assert (sent.status_code, bool(sent.headers["ETag"])) == (200, True)
    new = {"original_file_id": announced["file"]["id"]}
    video = customer.call("POST", "/api/videos", 201, json=new)

    order = {"effect_id": "image-invert", "video_id": video["id"], "idempotency_key": "first"}
    poor = customer.call("POST", "/api/ai-jobs", 422, json=order)
    assert (poor["code"], poor["required_tokens"]) == ("insufficient_tokens", 5)
    credit(app, ada)
    job = customer.call("POST", "/api/ai-jobs", 201, json=order)
    completed(Caller(app, ada), job["id"], b"the result")

    done = customer.call("GET", f"/api/ai-jobs/{job['id']}", 200)
    part = requests.get(done["outputs"][0]["url"], headers={"Range": "bytes=4-"}, timeout=20)
    assert (part.status_code, part.content) == (206, b"result")
    customer.call("DELETE", f"/api/videos/{video['id']}", 204)
    customer.call("POST", "/api/auth/logout", 204)
    customer.call("GET", "/api/me", 401)


def credit(app: Flask, person: Person) -> None:
    money.credit(
        app.extensions["comfyfleet"],
        user_id=person.user_id,
        amount=9,
        provider_transaction_id=uuid4().hex,
        note=None,
        actor="test",
    )


def test_a_client_that_goes_away_leaves_no_file_behind(house: tuple[Flask, Customer]) -> None:
    _, customer = house
    customer.register()
    announced = customer.announce(PNG)
    url = urlsplit(announced["upload"]["url"])
    with socket.create_connection((url.hostname, url.port), timeout=20) as connection:
        head = (
            f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Content-Type: image/png\r\nContent-Length: {len(PNG)}\r\n\r\n"
        )
        connection.sendall(head.encode() + PNG[:20])
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):  # until the server has given up on us, too
            pass
    new = {"original_file_id": announced["file"]["id"]}
    assert customer.call("POST", "/api/videos", 422, json=new)["code"] == "upload_missing"
