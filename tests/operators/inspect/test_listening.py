"""Who may read what is served, and for how long a client may take."""

from __future__ import annotations

import logging
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest

from tests.helpers.collected import TABLES
from tests.helpers.forks import JOB
from tidestate.operators.inspect.report import listening
from tidestate.operators.inspect.report.listening import Listening
from tidestate.operators.inspect.report.server import ReportServer
from tidestate.statestore.errors import UnavailableError, UsageError

BODY = b"x" * 3


def answer(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    request.wfile.write(BODY)


@pytest.fixture
def server() -> Iterator[Listening]:
    with Listening(("127.0.0.1", 0), answer, ["Reports.example"]) as made:
        thread = Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def status(url: str, host: str | None = None) -> int:
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=30) as found:
            return int(found.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_only_addresses_and_allowed_names_are_answered(server: Listening) -> None:
    allowed = [None, "localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:80", "10.1.2.3", "reports.example:8765"]
    assert [status(server.url, host) for host in allowed] == [200] * len(allowed)
    refused = ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil", "[evil]", ""]
    assert [status(server.url, host) for host in refused] == [421] * len(refused)


def test_slow_clients_hold_nothing(monkeypatch: pytest.MonkeyPatch, server: Listening) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS", 3)
    address = server.server_address[:2]
    slow = [socket.create_connection(address, timeout=30) for _ in range(3)]
    for client in slow:
        client.sendall(b"GET / HT")
    while len(server._began) < 3:
        time.sleep(0.001)
    with socket.create_connection(address, timeout=30) as one_more:
        assert one_more.recv(1) == b""
    monkeypatch.setattr(listening, "REQUEST_S", 0.0)
    assert [client.recv(1) for client in slow] == [b""] * 3
    monkeypatch.setattr(listening, "REQUEST_S", 10.0)
    for client in slow:
        client.close()
    while server._began:
        time.sleep(0.001)
    assert status(server.url) == 200


def test_a_client_that_leaves_is_no_error(
    server: Listening, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            server.handle_error(None, None)

    with caplog.at_level(logging.WARNING):
        broken()
    assert (caplog.text, capfd.readouterr().err) == ("", "")


def test_where_it_listens() -> None:
    for host in ("", " "):
        with pytest.raises(UsageError, match="serve-host"):
            Listening((host, 0), answer)
    with pytest.raises(UnavailableError, match="serve-port"):
        Listening(("no.such.host.invalid", 0), answer)


@pytest.mark.skipif(not socket.has_ipv6, reason="this host has no IPv6")
def test_it_listens_at_an_address_of_ipv6() -> None:
    with Listening(("::1", 0), answer) as made:
        assert made.url == f"http://[::1]:{made.server_address[1]}/"
        thread = Thread(target=made.handle_request)
        thread.start()
        assert status(made.url) == 200
        thread.join()


def test_a_root_that_is_gone_is_an_error_everywhere(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path / "root").run(TABLES[:1])
    with ReportServer(tmp_path / "root", ("127.0.0.1", 0), lambda _: "page") as server:
        assert [status(f"{server.url}{path}") for path in ("", "metrics")] == [200, 200]
        shutil.rmtree(tmp_path / "root")
        assert [status(f"{server.url}{path}") for path in ("", "metrics")] == [500, 500]
