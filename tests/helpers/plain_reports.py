"""Reports without the library that draws their charts: to bundle it takes a process two seconds, and tests of
`tests.operators.inspect` have it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

VARIABLE = "TIDESTATE_TESTS_PLAIN_REPORTS"


def plain_reports(arguments: Sequence[str]) -> None:
    """In a fork that runs a command with these ``arguments``, where the test wants it so."""
    if VARIABLE in os.environ and "report" in arguments:
        from tidestate.operators.inspect.report import page

        page._library = str  # type: ignore[assignment]
