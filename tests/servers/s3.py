"""A real S3 over loopback: moto's server, and a proxy before it that loses, refuses and counts.

Import ``s3_endpoint`` and ``s3_root``, and for the proxy ``s3_front`` and ``s3_proxy``, into a test module.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from moto.s3.responses import S3Response

from tests.servers.ports import free_port
from tests.servers.program import program
from tests.servers.proxy import Proxy, proxy_to
from tidestate.statestore.storage import faults as storage_faults
from tidestate.statestore.storage import options as storage_options
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


@pytest.fixture(scope="session")
def s3_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Another server, with nothing of the first: those of one process have all in common."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with program(command, endpoint, tmp_path_factory.mktemp("s3") / "log"):
        yield endpoint


def options_of(endpoint: str, secret: str) -> dict[str, Any]:
    """The options by which a server is reached without credentials in the environment."""
    region = {"region_name": "us-east-1"}
    return {"endpoint_url": endpoint, "key": "testing", "secret": secret, "client_kwargs": region}


def make_bucket(endpoint: str, bucket: str) -> None:
    """A bucket on a server."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")).close()


@pytest.fixture
def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment leads to no server, and this process was given no options yet."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(storage_options, "_given", {})
    monkeypatch.setattr(storage_faults, "FIRST_WAIT", 0.001)


@pytest.fixture
def s3_root(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh bucket and a prefix in it; the environment, which child processes inherit, leads there."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setattr(storage_faults, "FIRST_WAIT", 0.001)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    make_bucket(s3_endpoint, bucket)
    root = f"s3://{bucket}/some/prefix"
    # The probe of this root is done here, so that a test that counts requests or breaks them sees its own only.
    RemoteStorage(root, "")._check_create()
    return root


def s3_refusal(status: int, code: str) -> tuple[dict[str, str], bytes]:
    """As S3 refuses: headers, and a code in XML."""
    xml = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made up: {code}</Message></Error>"
    return {"Content-Type": "application/xml"}, xml.encode()


@pytest.fixture(scope="session")
def s3_front(s3_endpoint: str) -> Iterator[Proxy]:
    """One proxy for the session, so that connections last from test to test."""
    with proxy_to(s3_endpoint, s3_refusal) as proxy:
        yield proxy


@pytest.fixture
def s3_proxy(s3_root: str, s3_front: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """The same bucket as ``s3_root``, reached through a proxy without faults yet."""
    s3_front.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_front.url)
    return s3_front
