"""Spans are waited for by the monotonic clock: the wall clock may be set meanwhile, and is read where it is data."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.helpers.checkout import ROOT

READERS = {
    "operators/chaos/rounds.py",
    "operators/chaos/round_run.py",
    "operators/chaos/start.py",
    "operators/chaos/watched_sink.py",
    "operators/cli/chaos.py",
    "recovery/log/checkpoint.py",
    "statestore/storage/copies.py",
    "statestore/storage/local.py",
}
"""Modules that read the wall clock themselves: for a report, a time of access, or as `now_us`."""
MAY_CALL = re.compile(r"\b(time|time_ns|now|utcnow|now_us)\s*\(")
SPAN = re.compile(r"timeout|patience|deadline|until|pause")


@cache
def modules() -> list[tuple[str, ast.Module]]:
    """Those whose text may call the wall clock: to parse all of them takes seconds."""
    paths = [path for package in ("operators", "recovery", "statestore") for path in (ROOT / package).rglob("*.py")]
    texts = [(str(path.relative_to(ROOT)), path.read_text()) for path in sorted(paths)]
    return [(name, ast.parse(text)) for name, text in texts if MAY_CALL.search(text)]


def wall_clocks(tree: ast.AST) -> list[str]:
    """Calls of the wall clock."""
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if re.fullmatch(r"(time\.time(_ns)?|(\w+\.)?datetime\.(utc)?now|now_us)", call)]


def spans(function: ast.AST) -> set[str]:
    """Names of spans that a function waits for."""
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    names |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return {name for name in names if SPAN.search(name.lower())}


def test_the_wall_clock_is_read_where_it_is_data() -> None:
    found = {name for name, tree in modules() if set(wall_clocks(tree)) - {"now_us"}}
    assert found == READERS


def test_no_function_that_waits_for_a_span_reads_the_wall_clock() -> None:
    for name, tree in modules():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and wall_clocks(function):
                assert not spans(function), f"{name}, {function.name}: use time.monotonic()"


@pytest.mark.parametrize(
    "text",
    [
        "def f(timeout_s):\n while time.time() < timeout_s: pass",
        "def f(self):\n return now_us() > self._patience_us",
        "def f():\n until = datetime.datetime.now()",
    ],
)
def test_it_finds_what_it_looks_for(text: str) -> None:
    assert wall_clocks(ast.parse(text))
    assert spans(ast.parse(text))
