"""Processes that die at any call of whole jobs: the next one ends with what a run that was not disturbed has."""

from __future__ import annotations

import pytest

from tests.faults.scenarios import SCENARIOS
from tests.faults.trial import Every, Few, Unit, in_turns, tried, units
from tests.helpers.process import LONG


@pytest.mark.slow
@pytest.mark.parametrize(("number", "unit"), list(enumerate(units() if LONG else in_turns())), ids=str)
def test_a_process_that_dies_anywhere_changes_no_answer(number: int, unit: Unit) -> None:
    found = tried(unit, Every(40, str(unit)) if LONG else Few(number))
    assert found.recovered
    assert found.wrong == []


def test_scenarios_stores_and_places_take_turns() -> None:
    chosen = in_turns()
    assert [one.scenario for one in chosen] == list(SCENARIOS)
    assert len({(one.store, one.place) for one in chosen}) == 6
