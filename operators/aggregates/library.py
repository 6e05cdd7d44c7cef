"""The library of sketches, which an extra installs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidestate.statestore.distribution import install
from tidestate.statestore.errors import UsageError


def datasketches() -> Any:
    """The library of sketches. Raises `UsageError` where it is not installed."""
    try:
        import datasketches as library
    except ImportError:
        raise UsageError(
            f"sketches need the package datasketches: {install('sketches')}",
            code="sketch-package",
        ) from None
    return library


def updated(sketch: Any, parts: Iterable[Any]) -> Any:
    """A sketch with these values, or a union of sketches with these."""
    for part in parts:
        sketch.update(part)
    return sketch
