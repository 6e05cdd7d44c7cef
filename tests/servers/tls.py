"""TLS before a server that speaks plain HTTP, for a client that insists on it: Hadoop's ``abfss``."""

from __future__ import annotations

import ipaddress
import socket
import socketserver
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
"""Whom this machine trusts: a Java with a store of ours must fetch packages too."""
PASSWORD = "changeit"
"""The one that Java itself has for such files; certificates are no secret."""


@dataclass(frozen=True)
class TlsFront:
    """What speaks TLS for a server."""

    port: int
    """Of loopback."""
    java: str
    """Options for a Java that believes it."""


class _Front(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 100
    allow_reuse_address = True

    def __init__(self, endpoint: str, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self.upstream, self.context = (host, int(port)), context

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may hang up."""


class _Line(socketserver.BaseRequestHandler):
    server: _Front

    def handle(self) -> None:
        with (
            self.server.context.wrap_socket(self.request, server_side=True) as client,
            socket.create_connection(self.server.upstream) as server,
        ):
            replies = threading.Thread(target=_passed_on, args=(server, client), daemon=True)
            replies.start()
            _passed_on(client, server)
            replies.join()


def _passed_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for line in (source, target):
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


@contextmanager
def tls_before(endpoint: str, folder: Path) -> Iterator[TlsFront]:
    """A port that speaks TLS for ``endpoint``, as long as this context."""
    key, certificate = _self_signed()
    pem, store = folder / "certificate.pem", folder / "trusted.p12"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    store.write_bytes(_trusting(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    java = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword={PASSWORD}"
    with _Front(endpoint, context) as front:
        threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield TlsFront(int(front.server_address[1]), java)
        front.shutdown()


def _trusting(certificate: x509.Certificate) -> bytes:
    """A store for Java of those that this machine trusts, and this one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some have odd serial numbers
        known = x509.load_pem_x509_certificates(BUNDLE.read_bytes()) if BUNDLE.exists() else []
    named = enumerate([certificate, *known])
    trusted = [pkcs12.PKCS12Certificate(each, str(number).encode()) for number, each in named]
    return pkcs12.serialize_java_truststore(trusted, BestAvailableEncryption(PASSWORD.encode()))


def _self_signed() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tidestate tests")])
    today = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(today - timedelta(days=1)).not_valid_after(today + timedelta(days=2))
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    named = builder.add_extension(host, critical=False)
    return key, named.sign(key, hashes.SHA256())
