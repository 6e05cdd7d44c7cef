"""docs/how-it-works/progress.md: the modules that it names are there."""

from __future__ import annotations

import re

from tests.helpers.checkout import ROOT

PAGE = ROOT / "docs" / "how-it-works" / "progress.md"


def test_the_modules_named_are_there() -> None:
    named = set(re.findall(r"^\|.*\| `(\w+)`(?:, `(\w+)`)? \|$", PAGE.read_text(), re.M))
    modules = {name for pair in named for name in pair if name}
    assert modules <= {path.stem for path in (ROOT / "operators" / "progress").glob("*.py")}
