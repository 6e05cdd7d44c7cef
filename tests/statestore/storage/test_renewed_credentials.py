"""Credentials that expire while a job runs: those that are renewed where they come from end nothing; others end the
job, and the same start goes on with new ones. The proxy refuses whoever comes with what is out of date.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.oauth2.credentials import Credentials

from tests.helpers.worked_example import STREAM, example
from tests.servers.azure import signed_once
from tests.servers.clouds import Cloud
from tidestate.operators import Root
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.statestore.errors import CommitUnknownError, UnavailableError
from tidestate.statestore.storage import options as storage_options

pytestmark = pytest.mark.slow

Renew = Callable[[], None]
NAMES = ("first", "second", "third")


class Issuer:
    """Issues credentials by the names above. The newest alone counts: `renew` makes the ones before worthless."""

    def __init__(self, cloud: Cloud, folder: Path) -> None:
        self.cloud, self.file, self.used = cloud, folder / "current", list[str]()
        cloud.proxy.knows = self._knows
        cloud.proxy.expired = cloud.service.codes["expired"]
        self.number = -1
        self.renew()

    @property
    def current(self) -> str:
        return NAMES[self.number]

    def renew(self) -> None:
        self.number += 1
        self.file.write_text(self.current)

    def _knows(self, path: str, headers: Mapping[str, str]) -> bool:
        shown = path if self.cloud.name == "azure" else headers.get("Authorization", headers.get("authorization", ""))
        good = self.sign() in shown
        if good and self.current not in self.used:
            self.used.append(self.current)
        return good

    def sign(self) -> str:
        """What a request has that comes with the newest."""
        return self.current


@pytest.fixture
def issuer(cloud: Cloud, tmp_path: Path) -> Issuer:
    return Issuer(cloud, tmp_path)


@pytest.fixture
def given(issuer: Issuer, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The options that say where the credentials of this service come from."""
    monkeypatch.setattr(storage_options, "_given", {})
    for name in list(issuer.cloud.service.variables("")):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    return request.getfixturevalue(f"given_{issuer.cloud.name}")


@pytest.fixture
def given_s3(issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A profile whose program prints keys that last a minute: with less than ten left botocore asks again."""
    program, config = tmp_path / "keys.sh", tmp_path / "config"
    keys = '"Version": 1, "AccessKeyId": "%s", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": "%s"'
    until = "$(date -u -d '+60 seconds' +%Y-%m-%dT%H:%M:%SZ)"
    program.write_text(f'#!/bin/sh\nprintf \'{{{keys}}}\' "$(cat {issuer.file})" "{until}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    config.write_text(f"[profile jobs]\nregion = us-east-1\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    return {"profile": "jobs", "endpoint_url": issuer.cloud.proxy.url}


@pytest.fixture
def given_gcs(issuer: Issuer, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The key of a service account, for which a server gives tokens that last a minute."""

    class Tokens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            reply = json.dumps({"access_token": issuer.current, "expires_in": 60, "token_type": "Bearer"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Tokens)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key = {"type": "service_account", "project_id": "tests", "client_email": "jobs@tests.example"}
    key |= {"private_key": pem.decode(), "token_uri": f"http://127.0.0.1:{server.server_address[1]}/token"}
    (tmp_path / "key.json").write_text(json.dumps(key))
    yield {"token": str(tmp_path / "key.json"), "endpoint_url": issuer.cloud.proxy.url, "project": "tests"}
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def given_azure(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any] | None:
    """A signature in the environment, which a thread of the job's process replaces."""
    signed = {name: signed_once(issuer.cloud.proxy.url, days) for days, name in enumerate(NAMES, 1)}
    renew = issuer.renew

    def replaced() -> None:
        renew()
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", signed[issuer.current])

    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", signed[issuer.current])
    monkeypatch.setattr(issuer, "renew", replaced)
    monkeypatch.setattr(
        issuer, "sign", lambda: signed[issuer.current].partition("sig=")[2].partition("&")[0].rstrip(";")
    )
    return None


def test_a_job_goes_on_with_credentials_that_are_renewed(issuer: Issuer, given: dict[str, Any] | None) -> None:
    """Each batch but the first meets credentials that the one before did not have."""
    root = issuer.cloud.root
    sink = ParquetSink(f"{root}-panes", storage_options=given)
    job = example("retracting").standalone(checkpoint=root, storage_options=given, sink=sink)
    panes = 0
    for number, table in enumerate(job.stream(STREAM)):
        panes += table.num_rows
        if number < len(NAMES) - 1:
            issuer.renew()
    assert Root(root, storage_options=given).panes().to_table().num_rows == panes > 0
    assert issuer.used == [*NAMES]
    assert len(STREAM) >= len(NAMES)


def by_value(issuer: Issuer) -> dict[str, Any]:
    """The newest credentials themselves, as options."""
    url = issuer.cloud.proxy.url
    if issuer.cloud.name == "azure":
        return {"connection_string": os.environ["AZURE_STORAGE_CONNECTION_STRING"]}
    if issuer.cloud.name == "gcs":
        # Of a text gcsfs would ask Google.
        token = Credentials(token=issuer.current)  # type: ignore[no-untyped-call]
        return {"endpoint_url": url, "token": token, "project": "tests"}
    region = {"region_name": "us-east-1"}
    return {"endpoint_url": url, "key": issuer.current, "secret": "s", "client_kwargs": region}


@pytest.mark.usefixtures("given")
def test_credentials_given_by_value_end_the_job_and_a_start_with_new_ones_goes_on(issuer: Issuer) -> None:
    root = issuer.cloud.root
    running = example("retracting").standalone(checkpoint=root, storage_options=by_value(issuer)).stream(STREAM)
    panes = next(iter(running)).num_rows
    issuer.renew()
    with pytest.raises((UnavailableError, CommitUnknownError), match="credentials"):
        list(running)
    options = by_value(issuer)
    panes += example("retracting").standalone(checkpoint=root, storage_options=options).run(STREAM).num_rows
    assert Root(root, storage_options=options).panes().to_table().num_rows == panes > 0
    assert issuer.used == [*NAMES[:2]]
