"""Processes that die at any call of whole jobs: who goes on comes to what a run that was not disturbed comes to."""

from __future__ import annotations

import pytest

from tests.faults.trial import Unit, in_turns, tried, units
from tests.helpers.process import LONG

EVERY = 20 if LONG else 90


@pytest.mark.slow
@pytest.mark.parametrize("unit", units() if LONG else in_turns(), ids=str)
def test_a_process_that_dies_anywhere_changes_no_answer(unit: Unit) -> None:
    found = tried(unit, EVERY)
    assert found.recovered > 2
    assert found.wrong == []
