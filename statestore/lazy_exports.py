"""Names of a package that are loaded when they are asked for: a program pays for what it uses, as PEP 562 allows."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def export(package: str, modules: Mapping[str, Sequence[str]]) -> None:
    """Give ``package`` the names that these modules define, named from the top: its ``__getattr__`` and ``__dir__``.

    They are set here because a type checker that sees a ``__getattr__`` takes every name for one that is there. So is
    ``__all__``, as a checker that sees one takes no other name for public.
    """
    home = {name: module for module, defined in modules.items() for name in defined}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    vars(sys.modules[package]).update(__getattr__=load, __dir__=lambda: sorted(home), __all__=sorted(home))
