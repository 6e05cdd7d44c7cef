"""An HTTP server of the standard library that clients cannot hold: few connections, each of them for a short time.

A page of another site may lead its own name to this address (DNS rebinding) and would read what is served here, so
only names that were allowed are answered, and addresses, which no name can be led to.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tidestate.statestore.errors import UnavailableError, UsageError

log = logging.getLogger("tidestate")

CONNECTIONS = 64
"""How many are open at a time; of more the new ones are closed."""
REQUEST_S = 10.0
"""How long a client may take to send its request."""
RESPONSE_S = 30.0
"""How long it may take to receive the answer."""


class Listening(ThreadingHTTPServer):
    """Calls ``answer`` for each GET request to one of ``names``, of the host or an address."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, address: tuple[str, int], answer: Callable[[BaseHTTPRequestHandler], None], names: Collection[str] = ()
    ) -> None:
        """Raises `UsageError` (``serve-host``) for no address, `UnavailableError` (``serve-port``) for one where it
        cannot listen.
        """
        host, port = address
        if not host.strip():
            raise UsageError(
                "give the address to listen on: 127.0.0.1 for this host only, 0.0.0.0 for all of its addresses",
                code="serve-host",
                host=host,
            )
        self.answer, self.names = answer, {"localhost", host.lower(), *(name.lower() for name in names)}
        self._began: dict[Any, float] = {}
        self._lock = threading.Lock()
        try:
            self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            super().__init__(address, _Handler)
        except OSError as error:
            raise UnavailableError(
                f"the report cannot be served at this host and port ({error.strerror or error}): choose another "
                "host or port",
                code="serve-port",
                host=host,
                port=port,
            ) from None
        literal = f"[{host}]" if ":" in host else host
        self.url = f"http://{literal}:{self.server_address[1]}/"

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a place for another connection."""
        with self._lock:
            self._began = {open_: began for open_, began in self._began.items() if open_.fileno() >= 0}
            if len(self._began) >= CONNECTIONS:
                return False
            self._began[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
        """Twice a second: end the connections whose requests take too long."""
        until = time.monotonic() - REQUEST_S
        with self._lock:
            slow = [request for request, began in self._began.items() if began < until]
        for request in slow:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def end_of_request(self, request: Any) -> None:
        """The request has been read: what follows takes as long as the answer does."""
        with self._lock:
            self._began[request] = float("inf")

    def shutdown_request(self, request: Any) -> None:
        """Close the connection of a request, which is then not waited for any more."""
        with self._lock:
            self._began.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no error of ours."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.warning("a request for the report could not be answered: %r", error)

    def is_named(self, header: str | None) -> bool:
        """Whether a ``Host`` header has an address or a name that is allowed."""
        if header is None:  # no browser
            return True
        name = header.strip().lower()
        host = name.partition("]")[0][1:] if name.startswith("[") else name.partition(":")[0]
        with suppress(ValueError):
            return bool(ipaddress.ip_address(host))
        return host in self.names


class _Handler(BaseHTTPRequestHandler):
    server: Listening
    timeout = RESPONSE_S

    def do_GET(self) -> None:
        self.server.end_of_request(self.request)
        if self.server.is_named(self.headers.get("Host")):
            self.server.answer(self)
        else:
            self.send_error(421, "This host has another name", "allow the name with --name")

    def do_HEAD(self) -> None:
        """Answer a HEAD request as `do_GET` would, without the text."""
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Nothing: a request is no event of the job."""
