"""mypy, strict, and a limit on what it cannot see: expressions whose type is Any.

``make check`` runs it in place of mypy. A report is never cached, so one run does both.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_PERCENT = 5.0
LISTED = 5


def main() -> int:
    """0 where mypy finds no error and few enough expressions are Any."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-m", "mypy", "--any-exprs-report", folder], check=False)
        if done.returncode:
            return done.returncode
        modules = read_report((Path(folder) / "any-exprs.txt").read_text())
    share = percent_any(modules)
    print(f"{share:.1f} % of expressions are Any, {LIMIT_PERCENT:.0f} % are allowed")
    if share < LIMIT_PERCENT:
        return 0
    for name, (unknown, total) in sorted(modules.items(), key=lambda one: -one[1][0])[:LISTED]:
        print(f"  {name}: {unknown} of {total}")
    return 1


def read_report(text: str) -> dict[str, tuple[int, int]]:
    """Of each module in mypy's report: expressions that are Any, and all of them."""
    rows = [line.split() for line in text.splitlines()]
    counts = {row[0]: (int(row[1]), int(row[2])) for row in rows if len(row) == 4 and row[1].isdigit()}
    counts.pop("Total", None)
    return counts


def percent_any(modules: dict[str, tuple[int, int]]) -> float:
    """The share of Any over all modules; 100 where nothing was read."""
    total = sum(total for _, total in modules.values())
    return 100 * sum(unknown for unknown, _ in modules.values()) / total if total else 100.0


if __name__ == "__main__":
    sys.exit(main())
