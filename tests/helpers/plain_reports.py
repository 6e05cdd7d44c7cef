"""Reports without the library that draws their charts: to bundle it takes a process two seconds, and in every run
`tests.operators.inspect.test_report_browser` has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from tests.helpers.process import LONG

VARIABLE = "TIDESTATE_TESTS_PLAIN_REPORTS"


def plain_reports(arguments: Sequence[str]) -> None:
    """In a fork that runs a command with these ``arguments``, where the test wants it so."""
    if VARIABLE in os.environ and {"report", "--report", "serve"} & {*arguments}:
        from tidestate.operators.inspect.report import page

        page._library = str  # type: ignore[assignment]


@pytest.fixture(scope="module", autouse=True)
def without_charts() -> Iterator[None]:
    """Reports of this process, and of those that are forked from it, are written without the library of charts.
    Import it into the conftest of a folder; a module that needs the library has a fixture of this name.
    """
    from tidestate.operators.inspect.report import page

    with pytest.MonkeyPatch.context() as patch:
        if not LONG:
            patch.setattr(page, "_library", str)
            patch.setenv(VARIABLE, "1")
        yield
