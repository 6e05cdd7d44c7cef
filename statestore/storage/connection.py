"""Connections to remote storage through fsspec: never stale, one per process."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import fsspec
from fsspec.core import split_protocol

from tidestate.statestore.distribution import install
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.dialects.table import credential_variables, dialect_of

_NONE: Mapping[str, Any] = {}

_connections: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


# A fork may come while another thread holds the lock; nobody would ever release the child's.
os.register_at_fork(after_in_child=_new_lock)


def check_scheme(root: str) -> None:
    """Raise `UsageError` when nobody knows this scheme or the package that speaks it is not installed."""
    scheme, dialect = split_protocol(root)[0], dialect_of(root)
    try:
        if dialect.package and find_spec(dialect.package) is None:
            raise ImportError(dialect.package)
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        extra = dialect.extra
        remedy = install(extra) if extra else str(error).lower()
        raise UsageError(
            f"this storage needs a package that is not installed: {remedy}", code="storage-package", scheme=scheme
        ) from error
    except ValueError:
        raise UsageError(
            "unknown storage scheme: give a local path, or a URL such as s3://, gs://, abfs:// or hdfs://",
            code="root-url",
            root=root,
        ) from None


def connection(root: str, options: Mapping[str, Any] = _NONE) -> Any:
    """The file system of a root. Its event loop does not survive a fork, so every process has its own.

    Endpoint and credentials come from options that were given for it and from the environment, so others of these are
    another connection.
    """
    dialect = dialect_of(root)
    given = (repr(sorted(options.items())), root) if options else ()
    key = (os.getpid(), dialect.account(root), given, _environment())
    with _lock:
        if key not in _connections:
            _connections[key] = dialect.connect(root, options)
        return _connections[key]


def _environment() -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in os.environ.items() if name.startswith(credential_variables()))
