"""One POST: where it leads, what it says, and that no receiver can do us harm."""

import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from models.base import utcnow
from models.delivery_claims import Claim, Tried
from models.settings import Settings
from models.webhook_rules import Target, WebhookRules
from tasks import webhook_sending
from tasks.webhook_sending import NotPublic, Patience, seconds_to_wait
from tests.tasks import receivers
from tests.tasks.receivers import Receiver, drip, nowhere, receiver, rude

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
PAYLOAD = {"type": "job.completed", "timestamp": "2026-01-01T00:00:00Z", "data": {"job_id": "ü"}}
PATIENCE = Patience(connect_seconds=1, total_seconds=2)
LOOPBACK = WebhookRules.from_settings(receivers.for_loopback(Settings()))
PUBLIC_ONLY = replace(LOOPBACK, allowed=())


def claim(url: str, *secrets: str) -> Claim:
    return Claim(
        delivery_id=uuid4(),
        endpoint_id=uuid4(),
        message_id="msg_1",
        payload=PAYLOAD,
        attempts=0,
        until=utcnow(),
        url=url,
        secrets=secrets or (SECRET,),
    )


def send(url: str, *secrets: str, rules: WebhookRules = LOOPBACK) -> Tried:
    return webhook_sending.send(claim(url, *secrets), rules, PATIENCE)


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def test_a_receiver_gets_what_standard_webhooks_promises(hook: Receiver) -> None:
    tried = send(f"{hook.url}?tenant=a&b=%20")
    assert (tried.status, tried.error) == (200, None)
    [got] = hook.received
    assert got.path == "/hook?tenant=a&b=%20"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["host"] == hook.url.removeprefix("http://").removesuffix("/hook")
    assert got.message_id == "msg_1"
    assert got.verified(SECRET) == PAYLOAD
    with pytest.raises(WebhookVerificationError):
        got.verified(OTHER_SECRET)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(got.body + b" ", got.headers)


def test_while_a_secret_is_changed_both_sign(hook: Receiver) -> None:
    send(hook.url, SECRET, OTHER_SECRET)
    [got] = hook.received
    assert len(got.headers["webhook-signature"].split()) == 2
    assert got.verified(SECRET) == got.verified(OTHER_SECRET) == PAYLOAD


def test_the_ten_lines_of_the_page_for_receivers_do_it(hook: Receiver) -> None:
    page = (Path(__file__).parents[2] / "docs/webhooks.md").read_text()
    [code] = [
        one for one in re.findall(r"```python\n(.*?)```", page, re.S) if "def verified" in one
    ]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own page
    verified = names["verified"]
    send(hook.url, OTHER_SECRET, SECRET)
    [got] = hook.received
    assert verified(got.body, got.headers, SECRET) == PAYLOAD
    with pytest.raises(ValueError, match="Not from"):
        verified(got.body + b" ", got.headers, SECRET)
    with pytest.raises(ValueError, match="Too old"):
        verified(got.body, got.headers | {"webhook-timestamp": "1"}, SECRET)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_is_a_yes(hook: Receiver, status: int) -> None:
    hook.status = status
    assert send(hook.url).error is None


@pytest.mark.parametrize("status", [100, 103, 199, 300, 400, 401, 404, 410, 429, 500, 503, 999])
def test_nothing_else_is(hook: Receiver, status: int) -> None:
    hook.status = status
    tried = send(hook.url)
    if status == 100:  # "go on", says HTTP, and what it goes on with makes no sense
        assert tried.error
    else:
        assert (tried.status, str(status) in (tried.error or "")) == (status, True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(hook: Receiver, status: int) -> None:
    with receiver() as elsewhere:
        hook.status, hook.headers = status, {"Location": elsewhere.url}
        tried = send(hook.url)
        assert tried.status == status
        assert "not followed" in (tried.error or "")
        assert elsewhere.received == []
    assert len(hook.received) == 1


def test_no_proxy_of_the_environment_is_asked(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with receiver() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login ada password secret\n")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert send(hook.url).error is None
        assert proxy.received == []
    assert "authorization" not in hook.received[0].headers


def flood(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


def never_go_on(connection: socket.socket) -> None:
    connection.recv(65536)
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


def say(answer: bytes) -> Callable[[socket.socket], None]:
    def talk(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    return talk


def keep_still(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


@pytest.mark.parametrize(
    "talk",
    [
        keep_still,
        drip(b"H"),
        drip(b"X-Slow: 1\r\n", first=b"HTTP/1.1 200 OK\r\n"),
        drip(b"a", first=b"HTTP/1.1 200 OK\r\nX-Slow: "),
        never_go_on,
    ],
    ids=["silence", "a dripping status", "dripping headers", "one long header", "endless 100s"],
)
def test_a_receiver_that_takes_its_time_is_left(talk: Callable[[socket.socket], None]) -> None:
    with rude(talk) as server:
        tried = send(server.url)
    assert tried.status is None
    assert "within 2 seconds" in (tried.error or "") or "no HTTP" in (tried.error or "")


@pytest.mark.parametrize(
    "talk",
    [flood, drip(b"x", first=b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")],
    ids=["a flood", "a dripping body"],
)
def test_after_its_yes_nobody_listens_for_long(talk: Callable[[socket.socket], None]) -> None:
    with rude(talk) as server:
        assert send(server.url).error is None


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "broke"),
        (b"\x00\xff\xfe" * 100, "no HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (b"HTTP/1.1 two hundred OK\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 20\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 70_000 + b"\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 200 + b"\r\n", "no HTTP"),
        (b"HTTP/1.1 500 \xff\xfe\r\nRetry-After: \xff\r\n\r\n", "500"),
    ],
)
def test_what_makes_no_sense_is_a_failed_try(answer: bytes, told: str) -> None:
    with rude(say(answer)) as server:
        assert told in (send(server.url).error or "")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nnot gzip",
        b"HTTP/1.0 200\r\n\r\n",
    ],
)
def test_a_yes_with_a_strange_body_is_a_yes(answer: bytes) -> None:
    with rude(say(answer)) as server:
        assert send(server.url).error is None


def test_where_nobody_listens_the_connection_is_refused() -> None:
    assert send(nowhere()).error == "The connection was refused."


@pytest.mark.parametrize("name", ["nothing.invalid", "a..b", "a" * 64 + ".example", "x" * 250])
def test_a_name_that_leads_nowhere_is_a_failed_try(name: str) -> None:
    assert send(f"http://{name}/").error == "The name can't be resolved."


# Where it leads


@pytest.mark.parametrize("host", ["localhost", "localhost.", "LOCALHOST"])
def test_a_name_that_leads_to_us_is_refused_when_connecting(hook: Receiver, host: str) -> None:
    """The text of the address shows nothing: what it leads to does."""
    url = hook.url.replace("127.0.0.1", host)
    assert PUBLIC_ONLY.target(url).host.lower() == "localhost"
    tried = send(url, rules=PUBLIC_ONLY)
    assert tried.error == "The name does not lead to a public address."
    assert hook.received == []
    assert send(url).error is None  # allowed on purpose


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f.1", "::ffff:127.0.0.1", "::1", "fe80::1", "127.1", "0"]
)
def test_other_spellings_of_loopback_would_be_refused_when_connecting(
    hook: Receiver, host: str
) -> None:
    """The first look at the text refuses them already; the socket does not rely on it."""
    port = int(hook.url.rpartition(":")[2].partition("/")[0])
    target = Target(is_tls=False, host=host, port=port, path="/hook")
    with pytest.raises(NotPublic):
        webhook_sending.dial(target, PUBLIC_ONLY, PATIENCE)


class Names:
    """A resolver whose owner changes his mind: each question gets the next answer.

    The one thing here that is not real: the machine's resolver can't be told from a test.
    """

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, _host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
            for address in answer
        ]


def test_a_name_that_changes_between_look_and_connection_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS rebinding: 127.0.0.2 is allowed here and stands for the world, 127.0.0.1 is not."""
    rules = WebhookRules.from_settings(
        replace(receivers.for_loopback(Settings()), webhook_allowed_networks="127.0.0.2/32")
    )
    with receiver("127.0.0.2") as world:
        port = int(world.url.rpartition(":")[2].partition("/")[0])
        with socket.create_server(("127.0.0.1", port)) as inside:
            inside.settimeout(0.2)
            names = Names(["127.0.0.2"], ["127.0.0.1"])
            monkeypatch.setattr(socket, "getaddrinfo", names)
            assert send(f"http://rebinding.example:{port}/", rules=rules).error is None
            assert names.asked == 1
            assert len(world.received) == 1
            assert world.received[0].headers["host"] == f"rebinding.example:{port}"
            again = send(f"http://rebinding.example:{port}/", rules=rules)
            assert again.error == "The name does not lead to a public address."
            with pytest.raises(TimeoutError):
                inside.accept()


@pytest.mark.parametrize("order", [["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"]])
def test_one_bad_address_among_good_ones_spoils_the_name(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch, order: list[str]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names(order))
    url = hook.url.replace("127.0.0.1", "mixed.example")
    assert "public address" in (send(url, rules=PUBLIC_ONLY).error or "")
    assert hook.received == []


def test_the_next_address_of_a_name_is_tried(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names(["127.0.0.3", "127.0.0.1"]))
    assert send(hook.url.replace("127.0.0.1", "two.example")).error is None


def test_the_library_would_connect_anywhere_and_is_not_let_to(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """http.client connects by name when it has no connection: it must never do so here."""

    def connect(_: http.client.HTTPConnection) -> None:
        raise AssertionError("It connected by itself.")

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connect)
    assert send(hook.url).error is None
    with rude(say(b"")) as server:
        assert send(server.url).error


def test_the_owner_is_not_told_where_a_name_leads(hook: Receiver) -> None:
    tried = send(hook.url.replace("127.0.0.1", "localhost"), rules=PUBLIC_ONLY)
    assert "127" not in (tried.error or "")


# TLS


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """For `localhost`, signed by itself, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(utcnow() - timedelta(days=1))
        .not_valid_after(utcnow() + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = tmp_path / "localhost.pem"
    file.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, *plain))
    return file


@pytest.fixture
def https(certificate: Path) -> Iterator[Receiver]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with receiver(tls=context) as made:
        made.url = made.url.replace("127.0.0.1", "localhost")
        yield made


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    webhook_sending._tls.cache_clear()
    yield
    webhook_sending._tls.cache_clear()


@pytest.mark.usefixtures("trusted")
def test_tls_is_for_the_name_that_was_asked_for(https: Receiver) -> None:
    assert send(https.url).error is None
    assert https.received[0].verified(SECRET) == PAYLOAD
    other = send(https.url.replace("localhost", "127.0.0.1"))
    assert "certificate" in (other.error or "")
    assert len(https.received) == 1


def test_a_certificate_that_nobody_knows_is_refused(https: Receiver) -> None:
    assert "certificate" in (send(https.url).error or "")
    assert https.received == []


def test_what_speaks_no_tls_is_a_failed_try(hook: Receiver) -> None:
    tried = send(hook.url.replace("http://", "https://"))
    assert tried.error == "TLS could not be set up."
    assert hook.received == []


@pytest.mark.parametrize("talk", [keep_still, drip(b"\x16")], ids=["silence", "dripping"])
def test_a_handshake_has_its_time_too(talk: Callable[[socket.socket], None]) -> None:
    with rude(talk) as server:
        assert send(server.url.replace("http://", "https://")).error


# Retry-After

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Thu, 01 Jan 2026 00:02:00 GMT", 120.0),
        ("Thu, 01 Jan 2026 00:02:00", 120.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("9" * 5000, None),
        ("Thu, 99 Foo 99999 00:00:00 GMT", None),
        ("٣", None),
    ],
)
def test_retry_after_is_read_as_http_has_it(told: str, seconds: float | None) -> None:
    assert seconds_to_wait(told, now=NOW) == seconds


def test_what_a_receiver_asks_for_is_handed_on(hook: Receiver) -> None:
    hook.status, hook.headers = 429, {"Retry-After": "17"}
    assert send(hook.url).wait_seconds == 17
