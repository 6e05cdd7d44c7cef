"""A line to a server over HTTP that loses requests and replies, refuses, delays, tears and counts."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Refusal = Callable[[int, str], tuple[dict[str, str], bytes]]
"""The headers and the body with which a service says a status and a code."""
Fault = str | tuple[int, str] | float | None


class Proxy(ThreadingHTTPServer):
    """Passes requests on, unless a fault is next for their method. ``log`` has what passed and how long replies were.

    Faults, each for one request: ``before`` breaks the connection, the request never arrives; ``after`` breaks it
    when the reply is there, ``torn`` in the middle of the reply; ``(status, code)`` is answered in the server's
    place; a number of seconds is a delay, after which the request passes. A ``careless`` one does not know
    conditional requests. ``chance`` gives a fault for each further method, or none. ``expired`` is answered to all
    requests while it is set, but those for which ``knows`` says yes by their path and headers.
    """

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, endpoint: str, refusal: Refusal) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = endpoint.removeprefix("http://")
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.refusal = refusal
        self.reset()

    def reset(self) -> None:
        self.faults: dict[str, list[Fault]] = {}
        self.log: list[tuple[str, str, str | None, int]] = []
        self.conditions: list[str | None] = []
        self.careless = False
        self.expired: tuple[int, str] | None = None
        self.knows: Callable[[str, Mapping[str, str]], bool] = lambda _path, _headers: False
        self.chance: Callable[[str], Fault] = lambda _method: None
        self.witness: Callable[[str, bytes], None] = lambda _moment, _request: None

    def bytes_read(self) -> int:
        return sum(size for method, _, _, size in self.log if method == "GET")

    def count(self, method: str) -> int:
        return sum(entry[0] == method for entry in self.log)

    def next_fault(self, method: str, path: str, headers: Mapping[str, str]) -> Fault:
        if self.expired is not None and not self.knows(path, headers):
            return self.expired
        waiting = self.faults.get(method, [])
        return waiting.pop(0) if waiting else self.chance(method)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait 40 ms
    server: Proxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.next_fault(self.command, self.path, dict(self.headers.items()))
        if isinstance(fault, float):
            time.sleep(fault)
        if fault == "before":
            self._hang_up()
        elif isinstance(fault, tuple):
            self._note(0)
            self._answer(fault[0], *self.server.refusal(*fault))
        else:
            request = self.path.encode() + b"\n" + body
            self.server.witness("before", request)
            status, headers, data = self._ask(body)
            self._note(len(data))
            self.server.witness("after", request)
            if fault == "after":
                self._hang_up()
            else:
                self._answer(status, headers, data, torn=fault == "torn")

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = do_PATCH = _pass_on  # noqa: N815

    def _note(self, size: int) -> None:
        self.server.log.append((self.command, self.path, self.headers.get("Range"), size))
        if self.command == "PUT":
            self.server.conditions.append(self.headers.get("If-None-Match"))

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=10)
        try:
            headers, path = dict(self.headers.items()), self.path
            if self.server.careless:
                headers = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
                path = path.replace("ifGenerationMatch=0", "")
            upstream.request(self.command, path, body, headers)
            reply = upstream.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: dict[str, str], data: bytes, *, torn: bool = False) -> None:
        self.send_response_only(status)
        own = {name.lower(): value for name, value in headers.items()}
        self.send_header("Date", own.get("date") or self.date_time_string())
        for name, value in headers.items():
            if name.lower() not in ("connection", "content-length", "transfer-encoding", "date"):
                self.send_header(name, value)
        size = own.get("content-length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if torn else data)
        if torn:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@contextmanager
def proxy_to(endpoint: str, refusal: Refusal) -> Iterator[Proxy]:
    """A proxy that runs as long as this context."""
    proxy = Proxy(endpoint, refusal)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
