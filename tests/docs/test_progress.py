"""docs/how-it-works/progress.md: its blocks run, in one program."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.helpers.checkout import ROOT

PAGE = ROOT / "docs" / "how-it-works" / "progress.md"


def test_blocks_of_progress_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(blocks) == 4
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_modules_named_are_there() -> None:
    named = set(re.findall(r"^\|.*\| `(\w+)`(?:, `(\w+)`)? \|$", PAGE.read_text(), re.M))
    modules = {name for pair in named for name in pair if name}
    assert modules <= {path.stem for path in (ROOT / "operators" / "progress").glob("*.py")}
