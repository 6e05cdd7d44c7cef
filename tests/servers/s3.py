"""A real S3 over loopback: moto's server, and a proxy before it that loses, refuses and counts.

Import ``s3_endpoint`` and ``s3_root``, and for the proxy ``s3_front`` and ``s3_proxy``, into a test module.
"""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from moto.s3.responses import S3Response

from tidestate.statestore.storage import faults as storage_faults
from tidestate.statestore.storage.remote import RemoteStorage

VARIABLES = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def _one_at_a_time(act: Callable[..., Any]) -> Callable[..., Any]:
    """moto looks whether the object is there, then writes it; S3 does that in one step."""
    lock = threading.Lock()

    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return act(*args, **kwargs)

    return locked


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of a server that lives as long as the session."""
    with mock.patch.object(S3Response, "put_object", _one_at_a_time(S3Response.put_object)):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


@pytest.fixture
def s3_root(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh bucket and a prefix in it; the environment, which child processes inherit, leads there."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setattr(storage_faults, "FIRST_WAIT", 0.001)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_endpoint}/{bucket}", method="PUT")).close()
    root = f"s3://{bucket}/some/prefix"
    # The probe of this root is done here, so that a test that counts requests or breaks them sees its own only.
    RemoteStorage(root, "")._check_create()
    return root


class Proxy(ThreadingHTTPServer):
    """Passes requests on, unless a fault is next for their method. ``log`` has what passed and how long replies were.

    Faults, each for one request: ``before`` breaks the connection, the request never arrives; ``after`` breaks it
    when the reply is there; ``(status, code)`` is answered in the server's place. A ``careless``
    one does not know conditional requests. ``chance`` gives a fault for each further method, or none; a number of
    seconds is one too, after which the request passes.
    """

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = endpoint.removeprefix("http://")
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.reset()

    def reset(self) -> None:
        self.faults: dict[str, list[str | tuple[int, str]]] = {}
        self.log: list[tuple[str, str, str | None, int]] = []
        self.conditions: list[str | None] = []
        self.careless = False
        self.chance: Callable[[str], str | tuple[int, str] | float | None] = lambda _method: None

    def bytes_read(self) -> int:
        return sum(size for method, _, _, size in self.log if method == "GET")

    def count(self, method: str) -> int:
        return sum(entry[0] == method for entry in self.log)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        waiting = self.server.faults.get(self.command, [])
        fault = waiting.pop(0) if waiting else self.server.chance(self.command)
        if isinstance(fault, float):
            time.sleep(fault)
        if fault == "before":
            self._hang_up()
        elif isinstance(fault, tuple):
            self._note(0)
            self._answer(fault[0], {"Content-Type": "application/xml"}, _xml(fault[1]))
        else:
            status, headers, data = self._ask(body)
            self._note(len(data))
            if fault == "after":
                self._hang_up()
            else:
                self._answer(status, headers, data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass_on  # noqa: N815

    def _note(self, size: int) -> None:
        self.server.log.append((self.command, self.path, self.headers.get("Range"), size))
        if self.command == "PUT":
            self.server.conditions.append(self.headers.get("If-None-Match"))

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=10)
        try:
            headers = dict(self.headers.items())
            if self.server.careless:
                headers.pop("If-None-Match", None)
            upstream.request(self.command, self.path, body, headers)
            reply = upstream.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        own = {name.lower(): value for name, value in headers.items()}
        size = own.get("content-length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


def _xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made up: {code}</Message></Error>".encode()


@pytest.fixture(scope="session")
def s3_front(s3_endpoint: str) -> Iterator[Proxy]:
    """One proxy for the session, so that connections last from test to test."""
    proxy = Proxy(s3_endpoint)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield proxy
    proxy.shutdown()
    thread.join()
    proxy.server_close()


@pytest.fixture
def s3_proxy(s3_root: str, s3_front: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """The same bucket as ``s3_root``, reached through a proxy without faults yet."""
    s3_front.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_front.url)
    return s3_front
