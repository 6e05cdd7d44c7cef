"""The names of `operators` are what they say, whatever was imported before."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import types
from pathlib import Path

from tidestate import operators


def test_every_name_is_there_and_none_is_a_module() -> None:
    for module in pkgutil.walk_packages(operators.__path__, "tidestate.operators."):
        importlib.import_module(module.name)
    found = {name: getattr(operators, name) for name in dir(operators)}
    assert not [name for name, value in found.items() if isinstance(value, types.ModuleType)]
    tree = ast.parse(Path(str(operators.__file__)).read_text())
    typed = {one.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names}
    assert typed - {None} == set(found)
