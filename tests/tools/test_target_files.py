"""The number of files after a day: what is compacted has fewer, and no row less."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import target_files


@pytest.mark.slow
def test_a_table_that_is_compacted_has_few_files(tmp_path: Path) -> None:
    """A row of the table is of a target whose rows were counted."""
    rows = [
        target_files.measured(name, 8, tmp_path / f"{number}")
        for number, name in enumerate(target_files.DAY_TARGETS)
        if number in (2, 3)
    ]
    opened = [int(row.split("|")[3]) for row in rows]
    assert opened == [8, 1]
