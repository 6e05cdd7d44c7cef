"""Which cases of a parameter are in every run: the others are of the long form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], *places: int) -> list[Any]:
    """All cases, of which those at these places are in every run, and the others in the long form alone."""
    return [case if place in places else _longer(case) for place, case in enumerate(cases)]


def each_third(cases: Iterable[Any]) -> list[Any]:
    """All cases, of which every third is in every run: where two values take turns, both come up."""
    return [_longer(case) if place % 3 else case for place, case in enumerate(cases)]


def _longer(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
