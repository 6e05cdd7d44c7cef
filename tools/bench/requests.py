"""A real S3 service on this host, moto's, that counts what it is asked; and what S3 asks for that."""

from __future__ import annotations

import logging
import os
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

KINDS = ("PUT", "LIST", "GET", "HEAD", "DELETE")
PRICES = {"PUT": 0.005, "POST": 0.005, "LIST": 0.005, "GET": 0.0004, "HEAD": 0.0004, "DELETE": 0.0}
"""US dollars for 1,000 requests: S3 Standard, us-east-1, https://aws.amazon.com/s3/pricing/, November 2026."""
BUCKET = "bench"
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Requests:
    """Requests by kind, since the last `take`. Those of the heartbeat, which come by the clock, are not counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, environ: Mapping[str, Any]) -> None:
        """Count a request of WSGI by its kind, except those that the clock causes (leases, acknowledgements)."""
        kind, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]
        by_clock = any(f"/{folder}/" in path or f"%2F{folder}" in query for folder in ("alive", "reached"))
        if not by_clock:
            with self._lock:
                self._counts["LIST" if kind == "GET" and "list-type" in query else kind] += 1

    def take(self) -> Counter[str]:
        """What was asked since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts


def price(requests: Mapping[str, float]) -> float:
    """The price of requests by their kind, in US dollars."""
    return sum(count * PRICES[kind] / 1000 for kind, count in requests.items())


@contextmanager
def counted() -> Iterator[tuple[str, Requests]]:
    """The URL of a bucket, to which the environment leads meanwhile, and the requests to it."""
    requests, served = Requests(), DomainDispatcherApplication(create_backend_app)

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        requests.add(environ)
        return served(environ, start)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        with mock.patch.dict(os.environ, {**_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}):
            urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")).close()
            yield f"s3://{BUCKET}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
