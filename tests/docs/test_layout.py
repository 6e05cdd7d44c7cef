"""How the tests lie: they mirror the packages, what they share is in helpers, and no file is too long."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.helpers.checkout import ROOT

TESTS = ROOT / "tests"
PACKAGES = ("statestore", "recovery", "operators", "tools")
SHARED = ("helpers", "twins", "children", "servers")
OTHERS = ("spark", "connect", "docs", "conformance", "package", "faults", "golden", "examples")
"""Tests on real Spark, of what dies on Spark Connect, of the documents, of the conformance cases, of what is
installed, of faults in whole jobs, of roots of earlier versions, of the examples.
"""


WORD = re.compile(r"\w+")


@cache
def files() -> list[Path]:
    return [path for path in TESTS.rglob("*.py") if "__pycache__" not in path.parts]


@cache
def words(path: Path) -> frozenset[str]:
    """A file that has not the word of a name does not use it, and need not be parsed."""
    return frozenset(WORD.findall(path.read_text()))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text()))]


def imported(path: Path) -> set[str]:
    """Modules that a file imports, and names that it takes from packages."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_no_file_imports_from_a_test_file() -> None:
    tests = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in TESTS.rglob("test_*.py")}
    tests.add("tests.conftest")
    stems = {name.rpartition(".")[2] for name in tests}
    suspects = [path for path in files() if stems & words(path)]
    assert {str(path.relative_to(ROOT)): found for path in suspects if (found := imported(path) & tests)} == {}


def test_tests_and_what_they_share_lie_apart() -> None:
    """Test files in the folder of what they test, and nothing else of ours but packages of shared code."""
    for path in files():
        folder = path.relative_to(TESTS).parts[0]
        if path.name.startswith("test_"):
            assert folder in (*PACKAGES, *OTHERS), path
        elif path.name not in ("__init__.py", "conftest.py"):
            assert folder in (*SHARED, "conformance", "faults", "golden"), path


def test_every_folder_of_tests_is_a_package() -> None:
    """Else two test files of one name would be one module."""
    folders = {path.parent for path in files()}
    assert sorted(folder for folder in folders if not (folder / "__init__.py").exists()) == []


def test_no_file_of_the_product_or_of_tests_is_longer_than_800_lines() -> None:
    product = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in (*product, *files())}
    assert {name: length for name, length in lengths.items() if length > 800} == {}


def test_what_runs_keep_to_themselves_is_reached_through_one_door() -> None:
    """The names of `tests.helpers.internals`, unless a class of the test calls its own so."""
    door = TESTS / "helpers" / "internals.py"
    names = private_names(door)
    assert {"_job", "_driver"} <= names
    suspects = [path for path in files() if path != door and names & words(path)]
    reached = {str(path.relative_to(ROOT)): private_names(path) & names for path in suspects}
    assert {path: sorted(used) for path, used in reached.items() if used} == {}


def private_names(path: Path) -> set[str]:
    """Private attributes that a file reaches for, of anything but ``self``."""
    reached = [node for node in nodes(path) if isinstance(node, ast.Attribute)]
    private = [node for node in reached if node.attr.startswith("_") and not node.attr.startswith("__")]
    return {node.attr for node in private if ast.unparse(node.value) not in ("self", "cls", "super()")}
