"""One door to the JVM: what only a classic session has is used in the files that are named here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PRODUCT = Path(__file__).parents[3]
PARTS = ("statestore", "operators", "recovery")
DOORS = {
    "operators/spark/classic_platform.py",
    "operators/spark/platform.py",  # the class of py4j's errors
    "operators/spark/transport.py",  # RDDs
    "operators/spark/scan/extract.py",  # the plan of a stream as values
}
OF_THE_JVM = {"_jvm", "_jdf", "_jsc", "_jsparkSession", "_jschema", "_sc", "sparkContext", "rdd", "parallelize"}


def used(source: str) -> Iterator[str]:
    """What of a module only a classic session has: attributes by these names, and imports of py4j."""
    if not any(word in source for word in (*OF_THE_JVM, "py4j")):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in OF_THE_JVM:
            yield node.attr
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
        yield from (module for module in modules if module.partition(".")[0] == "py4j")


def test_only_the_doors_use_the_jvm() -> None:
    files = [file for part in PARTS for file in sorted((PRODUCT / part).rglob("*.py"))]
    found = {str(file.relative_to(PRODUCT)): set(used(file.read_text())) for file in files}
    assert {path: names for path, names in found.items() if names and path not in DOORS} == {}
    assert [path for path in sorted(DOORS) if not found[path]] == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("stream._jdf.queryExecution()", ["_jdf"]),
        ("session.sparkContext.defaultParallelism", ["sparkContext"]),
        ("frame.rdd", ["rdd"]),
        ("from py4j.protocol import Py4JError", ["py4j.protocol"]),
        ("import py4j", ["py4j"]),
        ("session.range(3)", []),
    ],
)
def test_what_is_found(source: str, names: list[str]) -> None:
    assert list(used(source)) == names
