"""Names of a package, or of a module that is a namespace, that are loaded when they are first used (PEP 562).

So a program pays for what it uses.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

FEW = 30
"""As many names an error lists."""


def export(package: str, file: str) -> None:
    """Give ``package`` the names that the ``.pyi`` next to its ``file`` imports, each from the module named there:
    ``from module import largest as max`` gives it ``max``.

    A type checker reads only the stub. Using a name that is not in it raises `AttributeError`.
    """
    loader: Any = sys.modules[package].__loader__  # the package may be in a zip, as Spark sends it to workers
    stub = ast.parse(loader.get_data(f"{file}i"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    sources = {name.asname or name.name: (str(node.module), name.name) for node in imports for name in node.names}

    def load(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{_hint(name, sources)}")
        module, defined = sources[name]
        return getattr(importlib.import_module(module), defined)

    vars(sys.modules[package]).update(__getattr__=load, __dir__=lambda: sorted(sources), __all__=sorted(sources))


def _hint(name: str, names: Iterable[str]) -> str:
    """All names of a small module, and of a large one the nearest."""
    there = sorted(names)
    if name.startswith("_"):
        return ""
    if len(there) <= FEW:
        return f": it has {', '.join(there)}"
    close = get_close_matches(name, there, n=2, cutoff=0.7)
    return f": did you mean {' or '.join(close)}?" if close else ""
