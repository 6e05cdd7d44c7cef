"""What all tests of recovery share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.plain_reports import VARIABLE
from tests.helpers.process import LONG
from tidestate.operators.inspect.report import page


@pytest.fixture(scope="module", autouse=True)
def _plain_reports() -> Iterator[None]:
    """Reports of this process, and of those that are forked from it, are written without the library of charts."""
    with pytest.MonkeyPatch.context() as patch:
        if not LONG:
            patch.setattr(page, "_library", str)
            patch.setenv(VARIABLE, "1")
        yield
