"""Code blocks of the documents use names that there are: also blocks that no test runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import tidestate
from tests.helpers.checkout import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(?:python|py)\n(.*?)^```", re.S | re.M)
NAMESPACES = ("agg", "fn", "trigger", "watermark", "sinks", "stores", "testing")


def lacking(code: str) -> Iterator[str]:
    """Names that a block imports from the package, or reads of it, and that it does not have."""
    for node in ast.walk(ast.parse(code.replace("…", "..."))):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "tidestate":
            module = import_module(str(node.module))
            yield from (f"{node.module}.{name.name}" for name in node.names if not hasattr(module, name.name))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = node.value.id
            place = tidestate if owner in ("ts", "tidestate") else getattr(tidestate, owner, None)
            if owner in ("ts", "tidestate", *NAMESPACES) and not hasattr(place, node.attr):
                yield f"{owner}.{node.attr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_names_in_code_blocks_are_public(page: Path) -> None:
    assert not [name for code in BLOCK.findall(page.read_text()) for name in lacking(code)]


def test_a_name_that_is_not_there_is_found() -> None:
    code = "from tidestate import windowed, tumbling\nts.agg.count(), ts.scan_panes, agg.sum_, watermark.over"
    assert list(lacking(code)) == ["tidestate.windowed", "ts.scan_panes", "agg.sum_"]
