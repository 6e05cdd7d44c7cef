"""The packages of the sinks that are included; they are extras, loaded when a sink first stores something."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tidestate.statestore.distribution import install
from tidestate.statestore.errors import UsageError


def package(name: str, extra: str) -> Any:
    """The module, of a package of this extra. Raises `UsageError` (``sink-package``)."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"this sink needs the package {error.name}: {install(extra)}", code="sink-package") from None
