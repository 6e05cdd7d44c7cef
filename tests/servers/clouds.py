"""Each remote store that a server can stand for here, behind a proxy: for tests that hold for all of them.

Import ``cloud`` into a test module, with the fixtures that it asks for: ``s3_endpoint``, ``gcs_endpoint``,
``azure_endpoint`` and ``fronts``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.helpers.process import few
from tests.servers.azure import azure_endpoint, azure_refusal, connection_string, make_azure_container
from tests.servers.gcs import gcs_endpoint, gcs_refusal, make_gcs_bucket
from tests.servers.proxy import Proxy, Refusal, proxy_to
from tests.servers.s3 import VARIABLES, make_bucket, s3_endpoint, s3_refusal
from tidestate.statestore.storage import faults as storage_faults
from tidestate.statestore.storage.remote import RemoteStorage

__all__ = ["Cloud", "azure_endpoint", "cloud", "fronts", "gcs_endpoint", "s3_endpoint"]

CLOUDS = ("s3", "gcs", "azure")


@dataclass(frozen=True)
class Service:
    """What differs between services for a test."""

    scheme: str
    writes_by: str
    """The method of a request that writes."""
    refusal: Refusal
    bucket: Callable[[str, str], None]
    """Makes a bucket at an endpoint."""
    variables: Callable[[str], dict[str, str]]
    """By which this process, and its children, reach an endpoint."""
    spark: str
    """How Hadoop's URL of a bucket begins, and ends."""
    codes: dict[str, tuple[int, str]]
    """What the service says."""


SERVICES = {
    "s3": Service(
        "s3",
        "PUT",
        s3_refusal,
        make_bucket,
        lambda endpoint: {**VARIABLES, "AWS_ENDPOINT_URL": endpoint},
        "s3a://{}",
        {
            "busy": (503, "SlowDown"),
            "failing": (500, "InternalError"),
            "throttled": (429, "TooManyRequests"),
            "taken": (412, "PreconditionFailed"),
            "conflict": (409, "ConditionalRequestConflict"),
            "forbidden": (403, "AccessDenied"),
            "expired": (400, "ExpiredToken"),
            "invalid": (400, "InvalidArgument"),
        },
    ),
    "gcs": Service(
        "gs",
        "POST",
        gcs_refusal,
        make_gcs_bucket,
        lambda endpoint: {
            "STORAGE_EMULATOR_HOST": endpoint,
            "GOOGLE_CLOUD_PROJECT": "tests",
            "NO_GCE_CHECK": "true",  # else Google's library looks for the host's credentials for some seconds
        },
        "gs://{}",
        {
            "busy": (503, "backendError"),
            "failing": (500, "internalError"),
            "throttled": (429, "rateLimitExceeded"),
            "taken": (412, "conditionNotMet"),
            "conflict": (409, "conflict"),
            "forbidden": (403, "forbidden"),
            "expired": (401, "authError"),
            "invalid": (400, "invalid"),
        },
    ),
    "azure": Service(
        "abfs",
        "PUT",
        azure_refusal,
        make_azure_container,
        lambda endpoint: {"AZURE_STORAGE_CONNECTION_STRING": connection_string(endpoint)},
        "abfss://{}@devstoreaccount1.dfs.core.windows.net",
        {
            "busy": (503, "ServerBusy"),
            "failing": (500, "InternalError"),
            "throttled": (429, "TooManyRequests"),
            "taken": (409, "BlobAlreadyExists"),
            "conflict": (409, "OperationNotAllowedInCurrentState"),
            "forbidden": (403, "AuthorizationPermissionMismatch"),
            "expired": (403, "AuthenticationFailed"),
            "invalid": (400, "InvalidInput"),
        },
    ),
}


@dataclass(frozen=True)
class Cloud:
    """A fresh bucket, and the prefix of a root in it, which is reached through ``proxy``."""

    name: str
    root: str
    bucket: str
    proxy: Proxy
    endpoint: str

    @property
    def service(self) -> Service:
        return SERVICES[self.name]

    @property
    def writes(self) -> str:
        """The method of a request that writes, under which the proxy has faults."""
        return self.service.writes_by

    def says(self, *names: str) -> list[str | tuple[int, str] | float | None]:
        """Faults by what they are called for any service; ``before``, ``after`` and ``torn`` are of the line."""
        return [self.service.codes.get(name, name) for name in names]


@pytest.fixture(scope="session")
def fronts() -> Iterator[Callable[[str, str], Proxy]]:
    """A proxy for each service and endpoint of the session, so that connections last from test to test."""
    made: dict[str, Proxy] = {}
    with ExitStack() as stack:

        def front(name: str, endpoint: str) -> Proxy:
            if name not in made:
                made[name] = stack.enter_context(proxy_to(endpoint, SERVICES[name].refusal))
            return made[name]

        yield front


# S3 has tests of its own in every run.
@pytest.fixture(params=few(CLOUDS, 1, 2))
def cloud(
    request: pytest.FixtureRequest, fronts: Callable[[str, str], Proxy], monkeypatch: pytest.MonkeyPatch
) -> Cloud:
    """A root in a fresh bucket of one service; the environment, which child processes inherit, leads to its proxy."""
    name = str(request.param)
    endpoint, service = str(request.getfixturevalue(f"{name}_endpoint")), SERVICES[name]
    proxy = fronts(name, endpoint)
    proxy.reset()
    for variable, value in service.variables(proxy.url).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(storage_faults, "FIRST_WAIT", 0.001)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    service.bucket(endpoint, bucket)
    root = f"{service.scheme}://{bucket}/some/prefix"
    # The probe of this root is done here, so that a test that counts requests or breaks them sees its own only.
    RemoteStorage(root)._check_create()
    proxy.reset()
    return Cloud(name, root, bucket, proxy, endpoint)
