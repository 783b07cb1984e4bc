"""Results on their way into storage: to which address each goes, and how it is described."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu_worker.backend_stand_in import BackendStandIn, backend_stand_in
from tests.gpu_worker.outbox import RESULT, Outbox, described, outbox_of, place


@pytest.fixture
def webapp() -> Iterator[BackendStandIn]:
    with backend_stand_in() as server:
        yield server


@pytest.fixture
def outbox(webapp: BackendStandIn, tmp_path: Path) -> Iterator[Outbox]:
    with outbox_of(webapp, tmp_path) as outbox:
        yield outbox


def test_the_expected_output_goes_to_the_address_of_the_lease(
    webapp: BackendStandIn, outbox: Outbox
) -> None:
    content = bytes(range(256)) * 10_000  # many pieces
    assert outbox.send(outbox.made("a.png", content)) == [described("a.png", content)]
    [put] = webapp.calls(RESULT)
    assert put.content == content
    assert put.headers["content-type"] == "image/png"
    assert put.headers["x-signed"] == "yes"
    assert put.headers["content-length"] == str(len(content))
    assert "transfer-encoding" not in put.headers
    assert "authorization" not in put.headers
    assert webapp.calls("heartbeat") == []


def test_another_type_asks_for_an_address(webapp: BackendStandIn, outbox: Outbox) -> None:
    made = outbox.made("a.webp", b"webp", "image/webp")
    told = outbox.send(made)
    assert told == [described("a.webp", b"webp", "image/webp")]
    [asked] = webapp.calls("heartbeat")
    assert asked.body["outputs"] == told
    [put] = webapp.calls(f"PUT {place(b'webp')}")
    assert (put.content, put.headers["content-type"]) == (b"webp", "image/webp")
    assert put.headers["x-size"] == "4"
    assert webapp.calls(RESULT) == []


def test_several_ask_together_and_each_goes_to_its_own(
    webapp: BackendStandIn, outbox: Outbox
) -> None:
    contents = [b"one", b"two", b"three"]
    told = outbox.send(*(outbox.made(f"{n}.png", one) for n, one in enumerate(contents)))
    assert told == [described(f"{n}.png", one) for n, one in enumerate(contents)]
    assert len(webapp.calls("heartbeat")) == 1
    assert webapp.stored == {place(one): one for one in contents}


def test_any_name_will_do(webapp: BackendStandIn, outbox: Outbox) -> None:
    names = ["grün 🎬.png", "../../etc/passwd", "a\nb.png", "日本語.png"]
    told = outbox.send(*(outbox.made(name, name.encode()) for name in names))
    assert [one["name"] for one in told] == names
    assert set(webapp.stored.values()) == {name.encode() for name in names}


@pytest.mark.parametrize("mime_type", ["image/png", "text/plain"])
def test_an_empty_file_is_sent_as_one(
    webapp: BackendStandIn, outbox: Outbox, mime_type: str
) -> None:
    told = outbox.send(outbox.made("empty", b"", mime_type))
    assert told == [described("empty", b"", mime_type)]
    [put] = [asked for asked in webapp.asked if asked.name.startswith("PUT")]
    assert put.headers["content-length"] == "0"
    assert "transfer-encoding" not in put.headers


def test_nothing_made_is_nothing_sent(webapp: BackendStandIn, outbox: Outbox) -> None:
    assert outbox.send() == []
    assert webapp.names() == ["register"]
