"""`rediss://` means TLS, and a certificate that is looked at: the broker's password goes there."""

import datetime
import ipaddress
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kombu.exceptions import OperationalError

from gpu_worker.app import make_app
from scripts import servers
from tasks.later import Later
from tasks.tickets import Bell

PASSWORD = "a password that must not be told to strangers"
AWAY_SECONDS = 10.0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1, signed by itself; the key is in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a broker")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "certificate.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return file


class TlsDoor(socketserver.ThreadingTCPServer):
    """Takes TLS connections and passes what they say on to a Redis."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, certificate: Path, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Passage)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate)
        self.redis_port = port
        self.heard: list[bytes] = []  # what got through the door


class Passage(socketserver.BaseRequestHandler):
    server: TlsDoor

    def handle(self) -> None:
        try:
            inside = self.server.context.wrap_socket(self.request, server_side=True)
        except (ssl.SSLError, OSError):
            return  # the caller spoke no TLS, or did not trust us
        with inside, socket.create_connection(("127.0.0.1", self.server.redis_port)) as redis:
            back = threading.Thread(target=self._pass_on, args=(redis, inside), daemon=True)
            back.start()
            self._pass_on(inside, redis, self.server.heard)

    def _pass_on(
        self, source: socket.socket, target: socket.socket, heard: list[bytes] | None = None
    ) -> None:
        try:
            while piece := source.recv(65536):
                if heard is not None:
                    heard.append(piece)
                target.sendall(piece)
        except OSError:
            return  # either side has hung up


@pytest.fixture
def door(certificate: Path, tmp_path: Path) -> Iterator[TlsDoor]:
    with servers.redis(tmp_path, password=PASSWORD) as url:
        port = urlsplit(url).port
        assert port is not None
        with TlsDoor(certificate, port) as door:
            thread = threading.Thread(target=door.serve_forever, daemon=True)
            thread.start()
            yield door
            door.shutdown()
            thread.join()


def address_of(door: TlsDoor) -> str:
    return servers.redis_url(door.server_address[1], PASSWORD).replace("redis:", "rediss:")


def connect(door: TlsDoor, query: str = "") -> None:
    app = make_app(f"{address_of(door)}{query}", "cards")
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=AWAY_SECONDS)
        connection.default_channel.client.ping()
    app.close()


def test_a_certificate_of_an_authority_we_named_is_trusted(
    door: TlsDoor, certificate: Path
) -> None:
    connect(door, f"?ssl_ca_certs={certificate}")
    assert PASSWORD.encode() in b"".join(door.heard)


def test_a_certificate_nobody_vouches_for_gets_no_password(door: TlsDoor) -> None:
    with pytest.raises(OperationalError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(door)
    assert door.heard == []


@pytest.mark.parametrize("query", ["", "?ssl_ca_certs={certificate}"])
def test_the_webapp_is_as_careful(door: TlsDoor, certificate: Path, query: str) -> None:
    later = Later()
    bell = Bell(address_of(door) + query.format(certificate=certificate), later)
    bell.ring("cards", uuid4())
    bell.nudge("cards", "w1")
    later.close()
    bell.close()
    assert (PASSWORD.encode() in b"".join(door.heard)) == bool(query)
