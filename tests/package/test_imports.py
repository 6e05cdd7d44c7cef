"""What the modules import: no circles, short chains, and nothing impure where the docstring says *Pure*."""

from __future__ import annotations

import grimp
import pytest

from tools.import_contracts import PACKAGE, circles, docstring, imports_within, longest_chain, marked

PACKAGES = [f"{PACKAGE}.{name}" for name in ("statestore", "recovery", "operators")]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(PACKAGE, cache_dir=None)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other_in_a_circle(graph: grimp.ImportGraph, package: str) -> None:
    assert not [one for one in circles(imports_within(graph, package)) if len(one) > 1]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_chain_of_imports_has_fewer_than_fifteen_modules(graph: grimp.ImportGraph, package: str) -> None:
    assert len(longest_chain(imports_within(graph, package))) < 15


def test_imports_in_functions_and_for_types_count(graph: grimp.ImportGraph) -> None:
    entry = "tidestate.recovery.cli.main"
    assert "tidestate.recovery.cli.printing" in graph.find_modules_directly_imported_by(entry)
    objects = graph.find_modules_directly_imported_by("tidestate.statestore.storage.objects")
    assert "tidestate.statestore.storage.remote" in objects


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_the_public_names_of_its_package(graph: grimp.ImportGraph, package: str) -> None:
    """They are loaded by name, from a stub that the graph does not see: that would be a circle."""
    importers = {one for one in graph.find_modules_that_directly_import(package) if one.startswith(f"{package}.")}
    assert not importers


def test_circles_are_found_and_what_they_import_comes_first() -> None:
    imports = {"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": ["e"], "e": ["e"], "f": []}
    assert [sorted(one) for one in circles(imports)] == [["e"], ["d"], ["a", "b", "c"], ["f"]]


def test_a_circle_counts_as_one_module_of_a_chain() -> None:
    imports = {"top": ["a"], "a": ["b"], "b": ["a", "c"], "c": ["d"], "d": []}
    assert len(longest_chain(imports)) == 4
    assert longest_chain(imports)[0] == "top"
    assert longest_chain({}) == []


@pytest.mark.long
def test_the_marker_holds_a_module_and_all_of_a_package(graph: grimp.ImportGraph) -> None:
    found = set(marked(graph.modules))
    assert "Pure." in docstring("tidestate.operators.windows")
    assert "Pure." not in docstring("tidestate.operators.windows.step")
    assert {"tidestate.operators.windows.step", "tidestate.recovery.log.manifest_file"} <= found
    assert "tidestate.operators.engine.job" not in found
    assert len(found) > 120
