"""What chaos compares of the state of two runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import agg
from tidestate.operators.chaos.evidence import Evidence, compared, evidence
from tidestate.operators.chaos.start import RoundFolders
from tidestate.statestore.spec.tables import TIME

SIGNED = pa.schema([("at", TIME), ("v", pa.int64()), ("kind", pa.string())])
LATER = [(1, 3, "retract"), (50, 7, "emit")]


def table_of(rows: list[tuple[int, int, str]]) -> pa.Table:
    seconds, values, kinds = zip(*rows, strict=True)
    moments = pa.array([1_000_000 * second for second in seconds], pa.int64()).cast(TIME)
    return pa.table([moments, list(values), list(kinds)], schema=SIGNED)


def left_by(folder: Path, rows: list[tuple[int, int, str]]) -> Evidence:
    """What a job leaves that takes these signed rows in one batch, and others in a second one."""
    groups = ts.stream(event_time="at", retractions=True).group_by().window(ts.tumbling("1 minute"))
    job = groups.aggregate(most=agg.max("v")).allowed_lateness("1 hour").accumulation("retracting").named("most")
    folders = RoundFolders(folder)
    folders.offered.mkdir(parents=True)
    runner = job.standalone(checkpoint=folders.root)
    list(runner.stream(table_of(batch) for batch in (rows, LATER)))
    return evidence(folders, None, None)


@pytest.mark.parametrize(
    ("second", "parts"),
    [
        ([(2, 5, "emit"), (1, 3, "emit")], []),
        ([(1, 3, "emit"), (2, 6, "emit")], ["state"]),
    ],
    ids=["the same rows in another order", "another row"],
)
def test_signed_rows_are_compared_without_their_order(
    tmp_path: Path, second: list[tuple[int, int, str]], parts: list[str]
) -> None:
    first = left_by(tmp_path / "first", [(1, 3, "emit"), (2, 5, "emit")])
    assert first.state is not None
    assert any("most_rows=[{" in row for rows in first.state.values() for row in rows)
    deviations = compared(first, left_by(tmp_path / "second", second))
    assert [found.part for found in deviations] == parts
