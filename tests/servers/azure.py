"""A server that speaks Azure Blob Storage: Microsoft's own ``azurite``, a program for Node that npm has."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.storage.blob import AccountSasPermissions, BlobServiceClient, ResourceTypes, generate_account_sas

from tests.servers.ports import free_port
from tests.servers.program import program

AZURITE = "3.35.0"
"""The last one for Node 20."""
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Those that every azurite has."""
_CACHE = Path.home() / ".cache" / "tidestate-tests" / f"azurite-{AZURITE}"


def connection_string(endpoint: str) -> str:
    """What adlfs and Azure's own clients reach the server with."""
    account = f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY}"
    return f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={endpoint}/{ACCOUNT};"


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that lives as long as the session; without Node, or npm's registry, a skip."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = ["node", str(_installed()), "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    command += ["--skipApiVersionCheck", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with program(command, endpoint, tmp_path_factory.mktemp("azure") / "log"):
        yield endpoint


def _installed() -> Path:
    """The program, which the first process of this machine that needs it installs."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("azurite needs Node and npm")
    main = _CACHE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not main.exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(_CACHE), f"azurite@{AZURITE}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                pytest.skip(f"azurite could not be had from npm: {done.stderr[-500:]}")
    return main


def signed_once(endpoint: str, days: int = 1) -> str:
    """The same with a signature of the account, not of each request: a proxy may then change a header. It lasts so
    many days.
    """
    rights, kinds = (
        AccountSasPermissions(read=True, write=True, delete=True, list=True),
        ResourceTypes(True, True, True),
    )
    until = datetime.now(UTC) + timedelta(days=days)
    signature = generate_account_sas(ACCOUNT, ACCOUNT_KEY, kinds, rights, until)
    return f"BlobEndpoint={endpoint}/{ACCOUNT};AccountName={ACCOUNT};SharedAccessSignature={signature};"


def make_azure_container(endpoint: str, container: str) -> None:
    """A new container, at an endpoint of the server."""
    with BlobServiceClient.from_connection_string(connection_string(endpoint)) as client:
        client.create_container(container)


def azure_refusal(status: int, code: str) -> tuple[dict[str, str], bytes]:
    """As Azure refuses: the code is in a header too."""
    xml = (
        f"<?xml version='1.0' encoding='utf-8'?><Error><Code>{code}</Code><Message>made up: {code}</Message></Error>"
    )
    return {"Content-Type": "application/xml", "x-ms-error-code": code}, xml.encode()
