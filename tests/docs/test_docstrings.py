"""Every public method says what it does, or overrides one that says it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from collections.abc import Iterator

import pytest

from tidestate import operators, recovery, statestore


def modules(package: types.ModuleType) -> Iterator[types.ModuleType]:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith("tidestate.statestore.testing"):
            yield importlib.import_module(module.name)


def undocumented(kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
        function = getattr(function, "func", function)  # of a cached property
        defined = inspect.isfunction(function) and function.__qualname__ == f"{kind.__qualname__}.{name}"
        if not name.startswith("_") and defined:
            bases = (getattr(base, name, None) for base in kind.__mro__)
            if not any(inspect.getdoc(base) for base in bases if base is not None):
                yield f"{kind.__module__}.{kind.__name__}.{name}"


@pytest.mark.parametrize("package", [operators, recovery, statestore], ids=lambda package: package.__name__)
def test_a_public_method_has_a_docstring_or_inherits_one(package: types.ModuleType) -> None:
    found = [
        name
        for module in modules(package)
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__ == module.__name__ and not kind.__name__.startswith("_")
        for name in undocumented(kind)
    ]
    assert not found
