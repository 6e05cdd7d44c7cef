"""Connections to remote storage through fsspec: never stale, one per process, time limits of our own."""

from __future__ import annotations

import os
import threading
from typing import Any

import fsspec
from fsspec.config import conf
from fsspec.core import split_protocol, url_to_fs

from tidestate.statestore.distribution import install
from tidestate.statestore.errors import UsageError

_LIMITS = {"connect_timeout": 4, "read_timeout": 8, "retries": {"total_max_attempts": 1, "mode": "standard"}}
"""botocore's, in seconds of silence. It does not retry: a create that it repeats would find its own object."""

_connections: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


# A fork may come while another thread holds the lock; nobody would ever release the child's.
os.register_at_fork(after_in_child=_new_lock)


def check_scheme(protocol: str, root: str) -> None:
    """Raise `UsageError` when nobody knows this scheme or the package that speaks it is not installed."""
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        remedy = install("s3") if protocol == "s3" else str(error).lower()
        raise UsageError(
            f"this storage needs a package that is not installed: {remedy}", code="storage-package", scheme=protocol
        ) from error
    except ValueError:
        raise UsageError("unknown storage scheme: give a local path or s3://", code="root-url", root=root) from None


def connection(root: str) -> Any:
    """The file system of a root. Its event loop does not survive a fork, so every process has its own.

    Endpoint and credentials come from the environment, so another environment is another connection.
    """
    protocol = split_protocol(root)[0]
    key = (os.getpid(), protocol if protocol == "s3" else root, _environment())
    with _lock:
        if key not in _connections:
            _connections[key] = _connect(root, protocol)
        return _connections[key]


def endpoint() -> str:
    """The address of the S3 service where it is not Amazon's own."""
    configured = conf.get("s3", {}).get("endpoint_url")
    found = configured or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return str(found or "")


def _environment() -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in os.environ.items() if name.startswith(("AWS_", "FSSPEC_")))


def _connect(root: str, protocol: str | None) -> Any:
    # fsspec would hand out an instance made with yesterday's environment, and lists from before the last write.
    fresh = {"use_listings_cache": False, "skip_instance_cache": True}
    if protocol != "s3":
        return url_to_fs(root, **fresh)[0]
    limits = {**_LIMITS, **conf.get("s3", {}).get("config_kwargs", {})}
    fs = fsspec.filesystem("s3", config_kwargs=limits, **fresh)
    fs.retries = 1  # s3fs' own, on top of botocore's
    return fs
