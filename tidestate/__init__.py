"""Durable window state for PySpark.

The public names are those of `tidestate.operators`, and the namespaces `agg`, `fn`, `trigger`, `watermark`,
`sinks`, `stores` and `testing`. They are loaded when they are asked for: importing this package is cheap.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

_NAMESPACES = ("agg", "fn", "sinks", "stores", "testing", "trigger", "watermark")
_MODULES = (*_NAMESPACES, "operators", "recovery", "statestore")
_HERE = os.path.dirname(__file__)
_CHECKOUT = os.path.dirname(_HERE)

if sys.platform == "linux" and "pyarrow" not in sys.modules and "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
    # Arrow's own choice keeps much of what was freed: see `statestore.process_memory`. Processes that are started
    # from here, as Spark's workers are, inherit both, and know by the second that no user has chosen.
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = os.environ["TIDESTATE_MEMORY_POOL"] = "jemalloc"

# The packages are links in a checkout. Where links cannot be made (a zip, Windows), the folders they lead to serve.
if not os.path.isdir(os.path.join(_HERE, "operators")) and os.path.isfile(os.path.join(_CHECKOUT, "pyproject.toml")):
    __path__.append(_CHECKOUT)

if TYPE_CHECKING:
    from tidestate import agg as agg
    from tidestate import fn as fn
    from tidestate import sinks as sinks
    from tidestate import stores as stores
    from tidestate import testing as testing
    from tidestate import trigger as trigger
    from tidestate import watermark as watermark
    from tidestate.operators import *  # noqa: F403

    __version__: str
else:  # a type checker would take every name that is missing for one that this function finds

    def __getattr__(name):
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name == "__all__":
            return sorted({*_NAMESPACES, *import_module(f"{__name__}.operators").__all__})
        if name == "__version__":
            return import_module(f"{__name__}.statestore.distribution").version()
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.operators"), name)

    def __dir__():
        own = (name for name in globals() if name.startswith("__"))
        return sorted({*own, "__version__", *_MODULES, *dir(import_module(f"{__name__}.operators"))})
