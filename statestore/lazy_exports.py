"""Names of a package that are loaded when they are asked for: a program pays for what it uses, as PEP 562 allows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any


def names(
    package: str, modules: Mapping[str, Sequence[str]], apart: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of ``package`` for what these modules define, named from the top.

    ``__all__`` is asked for like a name, and is made here: written out, it would hide all other names from mypy.
    Names of modules that need an optional library, ``apart``, do not stand in it.
    """
    home = {name: module for module, defined in modules.items() for name in defined}

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(home.keys() - set(apart))
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    return load, lambda: sorted(home)
