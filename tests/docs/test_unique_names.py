"""One meaning for each public name: a class, function or constant of the product is defined once.

`tools/ratchets.py` counts the constants of tools and of what tests share.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.checkout import ROOT

PACKAGES = ("statestore", "recovery", "operators")
LOGGER = "log"
"""Each module has its own."""


def defined(path: Path) -> Iterator[str]:
    """The public names that a module defines itself: classes, functions and constants."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def homonyms() -> dict[str, list[str]]:
    """Each public name with more than one definition, and the modules that define it."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for name in sorted({name for name in defined(path) if not name.startswith("_") and name != LOGGER}):
            modules[name].append(str(path.relative_to(ROOT)))
    return {name: where for name, where in sorted(modules.items()) if len(where) > 1}


def test_a_public_name_is_defined_once() -> None:
    assert not homonyms(), "two meanings for one name"
