"""The report over HTTP: made again when a browser asks and it has become old; metrics of the newest checkpoint, and
its health.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from http.server import BaseHTTPRequestHandler
from typing import Self

from tidestate.operators.engine.exposition import HEALTH, exposition_text, health_answer
from tidestate.operators.engine.job import progress_of
from tidestate.operators.engine.job_metrics import stored_families
from tidestate.operators.inspect.report.listening import Listening
from tidestate.recovery.log.absent import no_root
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.marker import MARKER
from tidestate.statestore.errors import TidestateError

HTML, TEXT, JSON = "text/html; charset=utf-8", "text/plain; charset=utf-8", "application/json"
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class ReportServer:
    """Serves the report about a root at ``/``, which ``make`` makes, metrics at ``/metrics``, and whether limits hold
    at ``/healthz``, while it is entered. A page is at most ``every_s`` old when it is sent, and a browser asks again
    after that time. Requests for other hosts than ``names``, the one of ``at``, localhost and addresses are refused.

    Raises `NotFoundError` for no root, `UsageError` without the extra ``report`` and what `Listening` raises.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        address: tuple[str, int],
        make: Callable[[Checkpoint], str],
        *,
        every_s: float = 10.0,
        names: Collection[str] = (),
    ) -> None:
        self._checkpoint, self._make, self._every_s = Checkpoint.open(root), make, every_s
        self._lock, self._page, self._page_time = threading.Lock(), b"", 0.0
        self.page()  # what is missing is reported here, not to a browser
        self._server = Listening(address, self._answer, names)
        self.url = self._server.url
        self._thread = threading.Thread(target=self._server.serve_forever, name="tidestate-report", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def page(self) -> bytes:
        """The report, which is made again if it is older than `every_s`."""
        with self._lock:
            if not self._page or time.monotonic() - self._page_time >= self._every_s:
                self._page = self._make(self._checkpoint).encode("utf-8", "replace")
                self._page_time = time.monotonic()
            return self._page

    def metrics(self) -> bytes:
        """What the newest checkpoint has, in the text format of Prometheus; nothing before the first."""
        with self._lock:
            head = self._checkpoint.newest()
        if head is None:
            return b""
        operators = head.manifest.operators
        progress = {
            name: figures for name, operator in operators.items() if (figures := progress_of(operator)) is not None
        }
        return exposition_text(stored_families(next(reversed(operators)), head.manifest, progress)).encode()

    def health(self, query: str) -> tuple[int, str, bytes]:
        """Status, kind and text of the answer to limits in a query, see `health_answer`."""
        with self._lock:
            status, body = health_answer(self._checkpoint, query)
        return status, JSON, body

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path, _, query = request.path.partition("?")
        objects = self._checkpoint.objects
        try:
            if not objects.exists(MARKER):
                raise no_root(objects.root)
            if path == "/":
                _send(request, 200, HTML, self.page(), refresh=max(1, round(self._every_s)))
            elif path == "/metrics":
                _send(request, 200, EXPOSITION, self.metrics())
            elif path == HEALTH:
                _send(request, *self.health(query))
            else:
                _send(request, 404, TEXT, b"here are /, /metrics and /healthz\n")
        except TidestateError as error:
            _send(request, 500, TEXT, f"{error}\n".encode("utf-8", "replace"))


def _send(
    request: BaseHTTPRequestHandler, status: int, kind: str, body: bytes, *, refresh: int | None = None
) -> None:
    request.send_response(status)
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
    headers |= {"X-Content-Type-Options": "nosniff"} | ({} if refresh is None else {"Refresh": str(refresh)})
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
