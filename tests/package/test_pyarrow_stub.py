"""The stub of pyarrow against the installed pyarrow: no name and no parameter that it does not have."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tools.typecheck import percent_any, read_report

STUB = Path(__file__).resolve().parents[2] / "tools" / "stubs" / "pyarrow"
FILES = sorted(STUB.glob("*.pyi"))
# Classes that only `pyarrow.lib` has, and their names there.
HIDDEN = {"_ListLikeArray": "BaseListArray"}
# Python 3.11 has no such method: the buffer protocol is C's.
SLOTS = {"__buffer__"}

Definition = ast.ClassDef | ast.FunctionDef | ast.AnnAssign


def module_of(path: Path) -> Any:
    return pa if path.stem.startswith("_") else importlib.import_module(f"pyarrow.{path.stem}")


def definitions(path: Path) -> Iterator[Definition]:
    """What a file of the stub says is in pyarrow: all but aliases, type variables and names of its own."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            if not node.name.startswith("_") or node.name in HIDDEN:
                yield node
        elif isinstance(node, ast.AnnAssign) and not is_alias(node):
            yield node


def is_alias(node: ast.AnnAssign) -> bool:
    return isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"


def protocols(path: Path) -> dict[str, list[ast.FunctionDef]]:
    """The calls of the stub's own protocols, by name."""
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    return {one.name: [f for f in one.body if isinstance(f, ast.FunctionDef)] for one in classes}


def unknown_parameters(stub: ast.FunctionDef, real: Any, *, bound: bool) -> list[str]:
    """Parameters of the stub that a call of ``real`` would refuse. What C does not describe is let pass."""
    try:
        parameters = list(inspect.signature(real).parameters.values())
    except (TypeError, ValueError):
        return []
    arguments = stub.args
    by_place = [one.arg for one in arguments.posonlyargs][bound:]
    by_name = [one.arg for one in (*arguments.args, *arguments.kwonlyargs)]
    by_name = by_name[1:] if bound and not arguments.posonlyargs else by_name
    takes_more = any(one.kind is one.VAR_KEYWORD for one in parameters)
    named = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    many = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    wrong = [] if takes_more else [name for name in by_name if name not in named]
    return wrong + ([] if many or len(by_place) <= len(places) else by_place[len(places) :])


def wrong_members(node: ast.ClassDef, real: type) -> Iterator[str]:
    for member in (one for one in node.body if isinstance(one, ast.FunctionDef)):
        if member.name in SLOTS:
            continue
        if not hasattr(real, member.name):
            yield f"{node.name}.{member.name}"
            continue
        decorators = {one.id for one in member.decorator_list if isinstance(one, ast.Name)}
        if "property" in decorators or member.name.startswith("__"):
            continue
        found = getattr(real, member.name)
        # A method of a class is given its instance; one of the class itself is bound already.
        names = unknown_parameters(member, found, bound="staticmethod" not in decorators)
        yield from (f"{node.name}.{member.name}({name})" for name in names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_stub_says_nothing_that_pyarrow_has_not(path: Path) -> None:
    module, calls, wrong = module_of(path), protocols(path), []
    for node in definitions(path):
        name = node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else ""
        name = name or getattr(node, "name", "")
        real = getattr(pa.lib if name in HIDDEN else module, HIDDEN.get(name, name), None)
        if real is None:
            wrong.append(name)
        elif isinstance(node, ast.ClassDef):
            wrong += wrong_members(node, real)
        elif isinstance(node, ast.FunctionDef):
            wrong += [f"{name}({one})" for one in unknown_parameters(node, real, bound=False)]
        elif isinstance(node.annotation, ast.Name) and node.annotation.id in calls:
            for call in calls[node.annotation.id]:
                wrong += [f"{name}({one})" for one in unknown_parameters(call, real, bound=True)]
    assert not wrong


def test_the_check_finds_a_wrong_name() -> None:
    (node,) = ast.parse("class Table:\n    def take(self, places): ...\n    def fly(self): ...").body
    assert isinstance(node, ast.ClassDef)
    assert list(wrong_members(node, pa.Table)) == ["Table.take(places)", "Table.fly"]
    (function,) = ast.parse("def equal(x, y, z, /, *, how): ...").body
    assert isinstance(function, ast.FunctionDef)
    assert unknown_parameters(function, pa.compute.equal, bound=False) == ["how", "z"]


def test_results_are_of_the_classes_that_the_stub_says() -> None:
    column = pa.chunked_array([[1, None], [3]])
    table = pa.table({"a": column})
    assert type(table["a"]) is pa.ChunkedArray
    assert isinstance(column.combine_chunks(), pa.Array)
    assert isinstance(pa.compute.equal(column, 1), pa.ChunkedArray)
    assert isinstance(pa.compute.equal(column.chunk(0), column.chunk(0)), pa.Array)
    assert isinstance(pa.compute.equal(pa.scalar(1), 1), pa.Scalar)
    assert isinstance(pa.compute.min_max(column), pa.StructScalar)
    assert isinstance(pa.compute.unique(column), pa.Array)
    assert isinstance(pa.compute.value_counts(column), pa.StructArray)
    assert isinstance(pa.compute.sort_indices(table, sort_keys=[("a", "ascending")]), pa.Array)
    assert isinstance(column.dictionary_encode(), pa.ChunkedArray)
    assert isinstance(column.unique(), pa.Array)
    assert pa.scalar(None, pa.binary()).as_buffer() is None


def test_the_share_of_any_is_read_from_the_report_of_mypy() -> None:
    report = (
        "  Name   Anys   Exprs   Coverage\n-----\n  a.b   1   10   90.00%\n"
        "  c   0   10   100.00%\n-----\n  Total   1   20   95.00%\n"
    )
    assert read_report(report) == {"a.b": (1, 10), "c": (0, 10)}
    assert percent_any(read_report(report)) == 5.0
    assert percent_any({}) == 100.0
