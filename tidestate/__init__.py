"""Durable window state for PySpark.

The public names are those of `tidestate.operators`, loaded when they are asked for: importing this package is cheap.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidestate.operators import *  # noqa: F403

_PACKAGES = ("operators", "recovery", "statestore")
_HERE = os.path.dirname(__file__)
_CHECKOUT = os.path.dirname(_HERE)

# The packages are links in a checkout. Where links cannot be made (a zip, Windows), the folders they lead to serve.
if not os.path.isdir(os.path.join(_HERE, "operators")) and os.path.isfile(os.path.join(_CHECKOUT, "pyproject.toml")):
    __path__.append(_CHECKOUT)  # noqa: F405


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.operators"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES, *dir(import_module(f"{__name__}.operators"))})
