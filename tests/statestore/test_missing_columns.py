"""Errors of columns that are not there offer the nearest ones and list all."""

from __future__ import annotations

import pytest

from tests.helpers.checkout import ROOT
from tidestate.statestore.missing_columns import missing_columns, nearest

COLUMNS = ["scheduled", "dep_delay", "origin", "Origin_2", "arr_delay", "user.name"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("schedule", ["scheduled"]),
        ("SCHEDULED", ["scheduled"]),
        ("dep_dealy", ["dep_delay"]),
        ("when", []),
        ("ar_delay", ["arr_delay", "dep_delay"]),
        ("origin2", ["Origin_2", "origin"]),
        ("user.nam", ["user.name"]),
        ("nothing", []),
        ("", []),
    ],
)
def test_the_nearest_columns_are_offered(name: str, expected: list[str]) -> None:
    assert nearest(name, COLUMNS) == expected


def test_an_error_offers_some_and_lists_all() -> None:
    error = missing_columns("the input lacks columns", ["schedule", "nothing", "ar_delay"], COLUMNS, side="left")
    assert str(error) == (
        "the input lacks columns: did you mean 'scheduled' for 'schedule', "
        "'arr_delay' or 'dep_delay' for 'ar_delay'? "
        f"[column-missing] side=left missing=['schedule', 'nothing', 'ar_delay'] columns={COLUMNS}"
    )
    assert str(missing_columns("no such column", ["x"], ["a"], code="read-column")) == (
        "no such column [read-column] missing=['x'] columns=['a']"
    )


def test_every_error_of_the_kind_is_made_here() -> None:
    """So that none lists less."""
    modules = (path for package in ("operators", "recovery", "statestore") for path in (ROOT / package).rglob("*.py"))
    raised = [str(path.relative_to(ROOT)) for path in modules if 'code="column-missing"' in path.read_text()]
    assert raised == ["statestore/missing_columns.py"]
