"""The table of targets and faults in RELIABILITY has each target that the tests have, with its forms."""

from __future__ import annotations

import re

import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.targets import KINDS

PAGE = ROOT / "docs" / "internals" / "reliability.md"
ROW = re.compile(r"\| `(?P<name>\w+)`(?P<more>[^|]*)\|(?P<cells>.*)\|")


def rows() -> dict[str, list[str]]:
    """The cells of each row, by what it begins with."""
    table = PAGE.read_text().partition("<!-- targets -->")[2].partition("\n\n")[0]
    found = [row for line in table.splitlines() if (row := ROW.fullmatch(line.strip()))]
    return {(row["name"] + row["more"]).strip(): [cell.strip() for cell in row["cells"].split("|")] for row in found}


def test_it_has_every_target() -> None:
    names = [name.partition(",")[0] for name in rows() if not name.startswith("TableSink")]
    assert sorted(names) == sorted(KINDS)
    assert [name for name in rows() if name.startswith("TableSink")] == ["TableSink, Delta", "TableSink, Iceberg"]
    assert {len(cells) for cells in rows().values()} == {7}


@pytest.mark.parametrize("name", KINDS)
def test_each_form_of_a_target_meets_what_all_meet(name: str) -> None:
    (cells,) = [cells for row, cells in rows().items() if row.partition(",")[0] == name]
    letters = [form[0] for form in KINDS[name].forms]
    for cell in cells[:3]:  # what is tried with each form
        assert sorted(cell.split()) == sorted(letters)
