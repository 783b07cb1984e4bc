"""The client of the instance metadata, against the stand-in and against servers that misbehave."""

from collections.abc import Iterator

import pytest

from gpu_worker.imds import Imds, MetadataUnavailable
from scripts.imds_stand_in import ImdsStandIn
from scripts.server_process import free_port
from tests.gpu_worker.file_server import FileServer, Reply, Request, file_server, status, whole

TOKEN_PATH = "/latest/api/token"
ID_PATH = "/latest/meta-data/instance-id"


@pytest.fixture
def stand_in() -> Iterator[ImdsStandIn]:
    with ImdsStandIn() as started:
        yield started


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as started:
        started.put(TOKEN_PATH, whole(b"a-token"))
        yield started


def client(server: FileServer, *, timeout_seconds: float = 1.0) -> Imds:
    return Imds(f"http://127.0.0.1:{server.port}", timeout_seconds=timeout_seconds)


def test_it_reads_what_is_there_and_none_where_nothing_is(stand_in: ImdsStandIn) -> None:
    stand_in.set("i-1", "tags/instance/FleetSlug", "sdxl")
    imds = Imds(stand_in.url("i-1"))
    assert imds.get("instance-id") == "i-1"
    assert imds.get("tags/instance/FleetSlug") == "sdxl"
    assert imds.get("spot/instance-action") is None


def test_an_address_needs_no_slash_at_its_end(stand_in: ImdsStandIn) -> None:
    assert Imds(stand_in.url("i-1").rstrip("/")).get("instance-id") == "i-1"


def test_a_token_that_is_over_is_renewed(stand_in: ImdsStandIn) -> None:
    imds = Imds(stand_in.url("i-1"))
    assert imds.get("instance-id") == "i-1"
    stand_in.forget_tokens("i-1")
    assert imds.get("instance-id") == "i-1"


def test_one_token_serves_many_questions(server: FileServer) -> None:
    server.put(ID_PATH, whole(b"i-1"))
    imds = client(server)
    assert [imds.get("instance-id") for _ in range(3)] == ["i-1"] * 3
    assert server.asked.count(TOKEN_PATH) == 1


def test_a_token_that_is_never_accepted_is_renewed_once(server: FileServer) -> None:
    server.put(ID_PATH, status(401))
    with pytest.raises(MetadataUnavailable, match="answers 401"):
        client(server).get("instance-id")
    assert server.asked.count(TOKEN_PATH) == 2


@pytest.mark.parametrize("trouble", [status(500), status(503), status(429)])
def test_trouble_that_passes_is_not_noticed(server: FileServer, trouble: Reply) -> None:
    server.put(ID_PATH, trouble, trouble, trouble, whole(b"i-1"))
    assert client(server).get("instance-id") == "i-1"


def test_trouble_that_stays_is_told(server: FileServer) -> None:
    server.put(ID_PATH, status(500))
    with pytest.raises(MetadataUnavailable, match="answers 500 for meta-data/instance-id"):
        client(server).get("instance-id")
    assert server.asked.count(ID_PATH) == 4


@pytest.mark.parametrize("code", [400, 403, 404])
def test_without_a_token_nothing_is_asked(server: FileServer, code: int) -> None:
    server.put(TOKEN_PATH, status(code))
    with pytest.raises(MetadataUnavailable, match=f"no token .it answers {code}"):
        client(server).get("instance-id")
    assert ID_PATH not in server.asked


def test_a_token_that_is_no_header_is_refused(server: FileServer) -> None:
    server.put(TOKEN_PATH, whole(b"bad\r\nX-Other: header"))
    with pytest.raises(MetadataUnavailable, match="no token"):
        client(server).get("instance-id")


def test_nobody_there() -> None:
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        Imds(f"http://127.0.0.1:{free_port()}/").get("instance-id")


def test_a_server_that_goes_silent_is_left(server: FileServer) -> None:
    server.put(ID_PATH, server.mute())
    with pytest.raises(MetadataUnavailable, match="Timeout"):
        client(server, timeout_seconds=0.1).get("instance-id")


def test_a_server_that_drips_is_left(server: FileServer) -> None:
    def drip(request: Request) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100000")
        request.end_headers()
        while not server.released.wait(0.02):
            request.wfile.write(b".")

    server.put(ID_PATH, drip)
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        client(server, timeout_seconds=0.2).get("instance-id")


def test_an_answer_without_end_is_left(server: FileServer) -> None:
    server.put(ID_PATH, whole(b"x" * 100_000))
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        client(server).get("instance-id")


def test_it_does_not_follow_to_another_address(server: FileServer) -> None:
    def elsewhere(request: Request) -> None:
        request.send_response(302)
        request.send_header("Location", "/elsewhere")
        request.send_header("Content-Length", "0")
        request.end_headers()

    server.put(ID_PATH, elsewhere)
    server.put("/elsewhere", whole(b"i-evil"))
    with pytest.raises(MetadataUnavailable, match="answers 302"):
        client(server).get("instance-id")
    assert "/elsewhere" not in server.asked


def test_no_proxy_sees_the_token(
    stand_in: ImdsStandIn, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    assert Imds(stand_in.url("i-1")).get("instance-id") == "i-1"
    assert server.asked == []
