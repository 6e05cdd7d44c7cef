"""Names of a package, or of a module that is a namespace, that are loaded when they are first used (PEP 562).

So a program pays for what it uses.
"""

from __future__ import annotations

import ast
import importlib
import sys
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
            there = f": it has {', '.join(sorted(sources))}" if len(sources) <= FEW and name[0] != "_" else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{there}")
        module, defined = sources[name]
        return getattr(importlib.import_module(module), defined)

    vars(sys.modules[package]).update(__getattr__=load, __dir__=lambda: sorted(sources), __all__=sorted(sources))
